//! [`Chart`]: lines with the places of their points, which the page draws as SVG.

use serde::Serialize;

use super::axis::Axis;

/// The lines of a chart that a reader can tell apart. The page has so many colours, dashes and marks.
pub(super) const MOST_LINES: usize = 6;

/// The ends of the axes in a drawing of the page.
const X: (f64, f64) = (66.0, 432.0);
const Y: (f64, f64) = (265.0, 10.0);

/// A line, in the values of its axes.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Whether a point has a mark.
    pub(super) has_mark: fn(f64) -> bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Chart {
    title: &'static str,
    /// For readers who do not see it.
    description: String,
    x: Vec<Tick>,
    y: Vec<Tick>,
    lines: Vec<Drawn>,
}

#[derive(Debug, Serialize)]
struct Tick {
    at: String,
    text: String,
}

/// A line, in the places of the drawing.
#[derive(Debug, Serialize)]
struct Drawn {
    points: Vec<String>,
    marks: Vec<String>,
}

impl Chart {
    pub(super) fn new(title: &'static str, (x, y): (&Axis, &Axis), lines: &[Line]) -> Self {
        let in_words = |line: &Line| {
            let (first, last) = (line.points.first()?, line.points.last()?);
            let point = |point: &(f64, f64)| format!("{} at {}", y.text(point.1), x.text(point.0));
            Some(format!(
                "{}: {} to {}.",
                line.name,
                point(first),
                point(last)
            ))
        };
        let in_words: Vec<String> = lines.iter().filter_map(in_words).collect();
        let place = |point: &(f64, f64)| format!("{},{}", at(x, X, point.0), at(y, Y, point.1));
        let drawn = |line: &Line| Drawn {
            points: line.points.iter().map(place).collect(),
            marks: line
                .points
                .iter()
                .filter(|point| (line.has_mark)(point.0))
                .map(place)
                .collect(),
        };
        Self {
            title,
            description: in_words.join(" "),
            x: ticks(x, X),
            y: ticks(y, Y),
            lines: lines.iter().map(drawn).collect(),
        }
    }
}

fn ticks(axis: &Axis, ends: (f64, f64)) -> Vec<Tick> {
    let tick = |value: &f64| Tick {
        at: at(axis, ends, *value),
        text: axis.text(*value),
    };
    axis.ticks().iter().map(tick).collect()
}

/// The place of a value in the drawing, in tenths of a pixel.
fn at(axis: &Axis, (first, last): (f64, f64), value: f64) -> String {
    format!("{:.1}", first + (last - first) * axis.place(value))
}
