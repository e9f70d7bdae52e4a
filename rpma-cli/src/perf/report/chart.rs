//! Draws lines as SVG. The colours in a drawing are names of its lines: the style of the page gives
//! each line its colour in light and in dark mode, and its dashes.

use std::f64::consts::TAU;

use plotters::backend::SVGBackend;
use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{EmptyElement, PathElement, Polygon};
use plotters::series::LineSeries;
use plotters::style::{Color, IntoTextStyle, RGBColor, ShapeStyle, TextStyle};
use serde::Serialize;

use super::axis::Axis;
use crate::problem::Problem;

/// The lines of a chart that a reader can tell apart.
pub(super) const MOST_LINES: usize = HUES.len();

/// Drawings have whole numbers only. Each is this part of a pixel.
const FINE: u32 = 8;
pub(super) const CHART: (u32, u32) = (460 * FINE, 310 * FINE);
const SWATCH: (u32, u32) = (48 * FINE, 16 * FINE);

/// The colours of lines in light and in dark mode. They differ for colour-blind readers, too, and
/// have a contrast of 3 at least.
const HUES: [(&str, &str); 6] = [
    ("#1449e6", "#4a78ff"),
    ("#7a3b06", "#e5572c"),
    ("#00a476", "#a5efc6"),
    ("#d83ebb", "#f58be2"),
    ("#9c8c10", "#f3df3e"),
    ("#26242a", "#857c77"),
];

/// The dashes of lines, in parts of a pixel: they differ on grey paper, too.
const DASHES: [&str; MOST_LINES] = ["none", "64 32", "16 24", "120 32", "96 24 16 24", "32 16"];

const INK: RGBColor = RGBColor(0, 0, 0);
const GRID: RGBColor = RGBColor(0, 0, 255);

/// The colour of a line in drawings.
fn colour(line: usize) -> RGBColor {
    RGBColor(255, 0, (line % MOST_LINES) as u8)
}

fn in_svg(colour: RGBColor) -> String {
    let RGBColor(red, green, blue) = colour;
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// The look of a line, which the style of the page gives to it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LineStyle {
    /// Its colour in drawings.
    name: String,
    light: &'static str,
    dark: &'static str,
    dashes: &'static str,
}

pub(super) fn looks() -> Vec<LineStyle> {
    let look = |line: usize| {
        let (light, dark) = HUES[line];
        LineStyle {
            name: in_svg(colour(line)),
            light,
            dark,
            dashes: DASHES[line],
        }
    };
    (0..MOST_LINES).map(look).collect()
}

/// The colours in drawings of text and axes, and of the grid.
pub(super) fn ink_and_grid() -> (String, String) {
    (in_svg(INK), in_svg(GRID))
}

/// A line, in the values of its axes.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub(super) points: Vec<(f64, f64)>,
    /// The points that have marks.
    pub(super) marks: Vec<(f64, f64)>,
}

type Failed = DrawingAreaErrorKind<std::io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The lines as SVG, without a legend.
pub(super) fn draw(x: &Axis, y: &Axis, lines: &[Line]) -> Result<String, Problem> {
    svg(CHART, |area| draw_chart(area, x, y, lines))
}

/// The sample of a line in a legend.
pub(super) fn swatch(line: usize) -> Result<String, Problem> {
    let (width, height) = (SWATCH.0 as i32, SWATCH.1 as i32);
    svg(SWATCH, |area| {
        let middle = height / 2;
        area.draw(&PathElement::new(
            vec![(0, middle), (width, middle)],
            stroke(line),
        ))?;
        let mark = EmptyElement::at((width / 2, middle)) + mark(line);
        area.draw(&mark)
    })
}

fn svg(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Failed>,
) -> Result<String, Problem> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let drawn = draw(&area).and_then(|()| area.present());
    drop(area);
    drawn.map_err(|error| Problem::new(format!("a chart cannot be drawn: {error}"), ""))?;
    // It takes the size of the element around it.
    let (width, height) = size;
    let fixed = format!(r#"width="{width}" height="{height}""#);
    Ok(svg.replacen(&fixed, r#"width="100%" height="100%""#, 1))
}

fn draw_chart(area: &Area<'_>, x: &Axis, y: &Axis, lines: &[Line]) -> Result<(), Failed> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(10 * FINE)
        .margin_right(28 * FINE)
        .x_label_area_size(45 * FINE)
        .y_label_area_size(86 * FINE)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .bold_line_style(GRID.stroke_width(FINE))
        .light_line_style(GRID.mix(0.0))
        .axis_style(INK.stroke_width(FINE))
        .set_all_tick_mark_size(4 * FINE)
        .label_style(font())
        .axis_desc_style(font())
        .x_label_formatter(&|value| x.text(*value))
        .y_label_formatter(&|value| y.text(*value))
        .x_desc(x.name)
        .y_desc(y.name)
        .draw()?;
    for (number, line) in lines.iter().enumerate() {
        let points = line.points.iter().copied();
        chart.draw_series(LineSeries::new(points, stroke(number)))?;
    }
    // Marks are above all lines.
    for (number, line) in lines.iter().enumerate() {
        let marks = line.marks.iter();
        chart.draw_series(marks.map(|point| EmptyElement::at(*point) + mark(number)))?;
    }
    Ok(())
}

fn font() -> TextStyle<'static> {
    // The backend divides sizes by this.
    const DIVISOR: f64 = 1.24;
    let size = 14.0 * f64::from(FINE) * DIVISOR;
    let style = ("sans-serif", size).with_color(INK);
    style.into_text_style(&CHART)
}

fn stroke(line: usize) -> ShapeStyle {
    colour(line).stroke_width(2 * FINE)
}

/// The shape at the points of a line.
fn mark(line: usize) -> Polygon<(i32, i32)> {
    // The directions of the corners in turns, and their distance in pixels.
    let corners: Vec<(f64, f64)> = match line % HUES.len() {
        0 => (0..16)
            .map(|corner| (f64::from(corner) / 16.0, 4.2))
            .collect(),
        1 => [0.125, 0.375, 0.625, 0.875].map(|turn| (turn, 5.4)).into(),
        2 => [0.25, 7.0 / 12.0, 11.0 / 12.0]
            .map(|turn| (turn, 6.2))
            .into(),
        3 => [0.0, 0.25, 0.5, 0.75].map(|turn| (turn, 6.2)).into(),
        4 => [0.75, 1.0 / 12.0, 5.0 / 12.0]
            .map(|turn| (turn, 6.2))
            .into(),
        _ => star(),
    };
    let corner = |(turn, distance): (f64, f64)| {
        let distance = distance * f64::from(FINE);
        let (sine, cosine) = (turn * TAU).sin_cos();
        ((cosine * distance) as i32, (-sine * distance) as i32)
    };
    Polygon::new(
        corners.into_iter().map(corner).collect::<Vec<_>>(),
        colour(line).filled(),
    )
}

/// With five points.
fn star() -> Vec<(f64, f64)> {
    let corner = |corner: u32| {
        let distance = match corner % 2 {
            0 => 7.4,
            _ => 3.0,
        };
        (0.25 + f64::from(corner) / 10.0, distance)
    };
    (0..10).map(corner).collect()
}
