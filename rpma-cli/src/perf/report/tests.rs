//! The page as a whole.

use std::fs;
use std::io;
use std::slice;

use tempfile::tempdir;

use super::*;
use crate::host::Host;
use crate::perf::result::Point;
use crate::perf::samples::{commit, host, lines, point, server, setting};
use crate::settings::{Completions, Op, Setting};

/// Writes a report of the points, and returns it.
fn page(points: &[Point]) -> String {
    let folder = tempdir().expect("a folder");
    let (file, place) = (folder.path().join("a.jsonl"), folder.path().join("a.html"));
    fs::write(&file, lines(points)).expect("a file");
    let outcome = write(&[file], &place, &mut Output::to(io::sink())).expect("valid results");
    assert_eq!(outcome, Outcome::Good);
    // The template engine escapes more than it has to.
    fs::read_to_string(&place)
        .expect("a page")
        .replace("&#x2f;", "/")
}

fn of_sizes(sizes: &[u64]) -> Vec<Point> {
    let of_size = |size: &u64| {
        let size = *size;
        point(Setting { size, ..setting() })
    };
    sizes.iter().map(of_size).collect()
}

/// The same results of another machine, on another day.
fn elsewhere(mut points: Vec<Point>) -> Vec<Point> {
    for point in &mut points {
        point.began = "2026-11-26T08:00:00Z".into();
        point.client = Host {
            description: Some("rxe".into()),
            board: None,
            firmware: None,
            ..host("rxe0")
        };
        point.servers = vec![server("rxe1"); point.servers.len()];
        let result = &mut point.result;
        result.operations_per_second *= 0.4;
        result.bytes_per_second *= 0.4;
        result.seconds /= 0.4;
    }
    points
}

/// All kinds of results, of two machines.
fn many() -> Vec<Point> {
    let mut points = Vec::new();
    for (op, depths) in [
        (Op::Write, &[1, 4, 16, 64][..]),
        (Op::Read, &[1, 16]),
        (Op::Send, &[1]),
    ] {
        for size in [8, 64, 512, 4096, 65536] {
            let with = |depth: &u32| {
                let depth = *depth;
                point(Setting {
                    op,
                    size,
                    depth,
                    ..setting()
                })
            };
            points.extend(depths.iter().map(with));
        }
    }
    for completions in [Completions::Poll, Completions::Wait] {
        for thousands in [20, 50, 100, 150, 200] {
            let rate = Some(f64::from(thousands) * 1e3);
            points.push(point(Setting {
                rate,
                completions,
                size: 256,
                ..commit()
            }));
        }
    }
    let mut others = elsewhere(of_sizes(&[8, 64, 512, 4096, 65536]));
    others[0].ended_early = Some("interrupted".into());
    points.extend(others);
    points
}

/// The headings of the sections with charts.
fn sections(page: &str) -> Vec<&str> {
    let all = ["Latency by percentile", "By size", "By depth", "By rate"];
    let is_there = |heading: &&str| page.contains(&format!(">{heading}</h2>"));
    all.into_iter().filter(is_there).collect()
}

/// The charts, without legends.
fn charts(page: &str) -> Vec<&str> {
    let charts = page.split("<svg class=\"chart\"").skip(1);
    charts
        .filter_map(|chart| chart.split_once("</figure>"))
        .map(|(chart, _)| chart)
        .collect()
}

/// The different lines of a chart.
fn lines_of(chart: &str) -> usize {
    let is_there = |line: &usize| chart.contains(&format!("class=\"line line-{line}\""));
    (0..256).filter(is_there).count()
}

#[test]
fn a_page_needs_no_network_and_no_script() {
    let page = page(&many()).replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for foreign in [
        "<script",
        "http:",
        "https:",
        "src=",
        "href=",
        "url(",
        "@import",
        "<link",
        "javascript:",
        " on",
    ] {
        let found = match foreign {
            // An attribute such as onload.
            " on" => page.match_indices(" on").any(|(at, _)| {
                let word: String = page[at + 1..]
                    .chars()
                    .take_while(char::is_ascii_alphabetic)
                    .collect();
                page[at + 1 + word.len()..].starts_with('=')
            }),
            _ => page.contains(foreign),
        };
        assert!(!found, "{foreign}");
    }
}

#[test]
fn texts_of_files_cannot_become_elements() {
    const HOSTILE: &str = "</title></td><script>alert(1)</script>\"'><img src=x onerror=y>&amp;";
    let mut point = point(setting());
    point.client.kernel = Some(HOSTILE.into());
    point.client.device = HOSTILE.into();
    point.servers[0].board = Some(HOSTILE.into());
    point.began = HOSTILE.into();
    point.ended_early = Some(HOSTILE.into());
    let page = page(&[point]);
    assert!(!page.contains("<script") && !page.contains("<img"));
    let escaped = page.matches("&lt;script&gt;alert(1)&lt;").count();
    assert_eq!(escaped, 5, "each is shown as it is");
    assert!(page.contains("&amp;amp;"));
}

#[test]
fn each_chart_is_there_if_results_differ_in_its_value_only() {
    let sized = |size| Setting { size, ..setting() };
    let deep = |depth| Setting { depth, ..setting() };
    let paced = |rate| Setting {
        rate: Some(rate),
        ..setting()
    };
    let other = Setting {
        size: 512,
        depth: 4,
        ..setting()
    };
    const LATENCY: &str = "Latency by percentile";
    for (settings, expected) in [
        (vec![setting()], &[LATENCY][..]),
        (vec![sized(64), sized(4096)], &[LATENCY, "By size"]),
        (vec![deep(1), deep(16)], &[LATENCY, "By depth"]),
        (vec![paced(1e3), paced(2e3)], &[LATENCY, "By rate"]),
        (vec![setting(), other], &[LATENCY]),
        (vec![setting(), paced(1e3)], &[LATENCY]),
        (
            vec![
                setting(),
                Setting {
                    op: Op::Read,
                    ..sized(512)
                },
            ],
            &[LATENCY],
        ),
        (
            vec![setting(), sized(512), other],
            &[LATENCY, "By size", "By depth"],
        ),
    ] {
        let points: Vec<Point> = settings.iter().map(|setting| point(*setting)).collect();
        let page = page(&points);
        assert_eq!(sections(&page), expected, "{settings:?}");
        let by_value = 4 * (expected.len() - 1);
        assert_eq!(charts(&page).len(), 1 + by_value, "{settings:?}");
    }
}

#[test]
fn two_machines_are_lines_of_the_same_chart() {
    let mut points = of_sizes(&[64, 4096]);
    points.extend(elsewhere(points.clone()));
    let page = page(&points);
    for words in [
        "Run 1, began 2026-11-25T09:30:00Z",
        "Run 2, began 2026-11-26T08:00:00Z",
    ] {
        assert!(page.contains(words), "{words}");
    }
    for words in [
        "mlx5_0",
        "rxe0",
        "rxe1",
        "MT_0000000223",
        "6.12.43",
        "<td>4200</td>",
    ] {
        assert!(page.contains(words), "{words}");
    }
    for chart in &charts(&page)[1..] {
        assert_eq!(lines_of(chart), 2);
    }
    assert!(page.contains(">run 1</span>") && page.contains(">run 2</span>"));
    assert!(page.contains("4 results of 2 runs."));
}

#[test]
fn servers_that_are_the_same_have_one_column() {
    let mut point = point(commit());
    point.servers[2].device = "mlx5_7".into();
    let page = page(&[point]);
    for words in [">Servers 1 to 2</th>", ">Server 3</th>", "mlx5_7"] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn no_chart_has_more_lines_than_a_reader_can_tell_apart() {
    let mut points = Vec::new();
    for size in [8, 64, 512] {
        points.extend((0..15).map(|connections| {
            let connections = connections + 1;
            point(Setting {
                size,
                connections,
                ..setting()
            })
        }));
    }
    let page = page(&points);
    let counts: Vec<usize> = charts(&page).into_iter().map(lines_of).collect();
    // The sizes of two numbers of connections for percentiles, and then all sizes on the x axis.
    assert_eq!(counts[..8], [6, 6, 6, 6, 6, 6, 6, 3]);
    assert_eq!(counts[8..], [6, 6, 6, 6, 6, 6, 6, 6, 3, 3, 3, 3]);
}

/// The texts of the ticks of a chart.
fn ticks(chart: &str) -> Vec<&str> {
    let texts = chart
        .split("</text>")
        .filter_map(|text| text.rsplit_once('>'));
    texts.map(|(_, text)| text.trim()).collect()
}

/// Promise: charts that a reader compares have one axis, and all sizes of a setting are in one box.
#[test]
fn sizes_are_in_one_chart_and_boxes_have_one_axis() {
    let mut points = Vec::new();
    for depth in [1, 2, 4] {
        let sizes = [64, 4096, 65536];
        points.extend(sizes.map(|size| {
            point(Setting {
                size,
                depth,
                ..setting()
            })
        }));
    }
    let page = page(&points);
    let charts = charts(&page);
    assert_eq!([lines_of(charts[0]), lines_of(charts[1])], [6, 3]);
    assert!(!ticks(charts[0]).is_empty());
    assert_eq!(ticks(charts[0]), ticks(charts[1]));
    let box_of_depth_4 = page
        .split("class=\"card panel\"")
        .nth(2)
        .expect("two boxes");
    for size in ["64 B", "4 KiB", "64 KiB"] {
        let key = format!("<span>{size} ");
        assert!(box_of_depth_4.contains(&key), "{size}");
    }
}

/// Promise: the same setting of two runs is in one box, however many boxes there are.
#[test]
fn two_runs_of_a_setting_are_side_by_side() {
    let points = of_sizes(&[64, 128, 256, 512, 1024, 2048, 4096]);
    let page = page(&[points.clone(), elsewhere(points)].concat());
    let boxes: Vec<&str> = page.split("class=\"card panel\"").skip(1).collect();
    for size in ["64 B", "256 B", "512 B", "2 KiB"] {
        let key = |run| format!("<span>run {run}, {size} ");
        let places = [1, 2].map(|run| boxes.iter().position(|of| of.contains(&key(run))));
        assert!(
            places[0].is_some() && places[0] == places[1],
            "{size}: {places:?}"
        );
    }
}

/// Promise: the table has the common words once, and no column without figures.
#[test]
fn a_table_of_results_is_narrow() {
    let points = of_sizes(&[64, 512]);
    let text = page(&points);
    let common = "<p class=\"soft\">write, depth 1, poll, closed loop</p>";
    assert!(
        text.contains(common) && text.contains(">64\u{a0}B<"),
        "{text}"
    );
    let column = ">Not begun</th>";
    assert!(!text.contains(column));
    let mut points = points;
    points[0].setting.rate = Some(1e3);
    assert!(page(&points).contains(column));
    let one = page(&points[..1]);
    assert!(
        one.contains(">write, 64\u{a0}B, depth\u{a0}1, poll, "),
        "{one}"
    );
}

/// Promise: lines differ without their colours: each has its own dashes, which its key shows.
#[test]
fn a_legend_is_readable_in_grey() {
    let page = page(&of_sizes(&[8, 64, 512, 4096, 8192, 65536]));
    let dashes: Vec<&str> = page
        .split("stroke-dasharray: ")
        .skip(1)
        .filter_map(|rest| rest.split(';').next())
        .collect();
    assert_eq!(dashes.len(), 6);
    for (number, dash) in dashes.iter().enumerate() {
        assert!(!dashes[..number].contains(dash), "{dash}");
    }
    let legend = page
        .split("<ul class=\"legend\">")
        .nth(1)
        .expect("a legend");
    let legend = legend.split("</ul>").next().expect("its end");
    for line in 0..6 {
        assert!(
            legend.contains(&format!("class=\"line line-{line}\"")),
            "{line}"
        );
    }
}

/// Promise: beside a chart that is alone stand the figures of its lines, also if there is one line.
#[test]
fn a_chart_that_is_alone_has_its_figures_beside_it() {
    let page = page(&[point(setting())]);
    assert!(
        page.contains("<span class=\"soft figures\">p50 "),
        "no figures"
    );
}

#[test]
fn few_results_of_several_operations_share_a_chart() {
    let settings = [
        setting(),
        commit(),
        Setting {
            op: Op::Read,
            ..setting()
        },
    ];
    let mut points = settings.map(point);
    for point in &mut points {
        point.servers = vec![server("mlx5_0"); 3];
    }
    let page = page(&points);
    assert_eq!(charts(&page).len(), 1);
    assert!(page.contains(">commit (native, durable, 2 of 3) <span"));
}

#[test]
fn equal_settings_of_a_run_are_numbered() {
    let mut second = point(setting());
    second.result.cpu_ns_per_operation = 500.0;
    let page = page(&[point(setting()), second]);
    assert_eq!(sections(&page), ["Latency by percentile"]);
    assert!(page.contains(">repeat 1 <span") && page.contains(">repeat 2 <span"));
    assert!(page.contains(">repeat\u{a0}2<"), "in the table");
}

#[test]
fn each_chart_has_a_title_and_a_text_of_its_own() {
    let page = page(&many());
    let charts = charts(&page);
    assert!(charts.len() > 20);
    let mut ids = Vec::new();
    for chart in charts {
        assert!(chart.contains("role=\"img\""));
        for part in ["title", "desc"] {
            let begin = format!("<{part} id=\"");
            let (_, rest) = chart.split_once(&begin).expect(part);
            let (id, text) = rest.split_once("\">").expect(part);
            assert!(!text.starts_with('<'), "{part} has a text");
            let labels = chart.split_once("aria-labelledby=\"").expect("labels").1;
            assert!(
                labels
                    .split('"')
                    .next()
                    .is_some_and(|labels| labels.contains(id))
            );
            ids.push(id);
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "no id is there twice");
}

#[test]
fn simulated_results_are_labelled() {
    let mut point = point(setting());
    assert!(!page(&[point.clone()]).contains("imulated"));
    point.simulated = true;
    let page = page(&[point]);
    assert!(page.contains("<title>Simulated: "));
    assert!(page.contains("<strong>Simulated.</strong> The times are the work of the simulator."));
}

#[test]
fn the_table_has_all_figures_of_a_result() {
    let mut point = point(Setting {
        rate: Some(440e3),
        ..setting()
    });
    point.ended_early = Some("the server is gone".into());
    let latency = point.result.latency;
    let page = page(&[point.clone()]);
    let row = page
        .split_once("<tr><th scope=\"row\">write,")
        .expect("a row")
        .1;
    let row = row.split_once("</tr>").expect("its end").0;
    let time = |ns: u64| crate::settings::Nanos(ns as f64).to_string();
    for text in [
        "440 k/s".to_owned(),
        "28.2 MB/s".to_owned(),
        "0.225".to_owned(),
        time(latency.p50),
        time(latency.p90),
        time(latency.p99),
        time(latency.p99_9),
        time(latency.p99_99),
        time(latency.most),
        "412 ns".to_owned(),
        "17".to_owned(),
    ] {
        assert!(row.contains(&format!("<td>{text}</td>")), "{text}: {row}");
    }
    assert!(row.contains("Ended early: the server is gone"), "{row}");
    assert!(page.contains("1 result of 1 run. 1 result ended early."));
    assert!(page.contains("an error of at most 0.1 %"));
}

#[test]
fn nothing_is_written_if_a_line_is_bad() {
    let folder = tempdir().expect("a folder");
    let (file, place) = (folder.path().join("a.jsonl"), folder.path().join("a.html"));
    fs::write(&file, lines(&[point(setting())]) + "{").expect("a file");
    fs::write(&place, "old").expect("a page");
    let problem = write(&[file], &place, &mut Output::to(io::sink())).expect_err("it is cut off");
    assert!(problem.to_string().starts_with("line 2 of "), "{problem}");
    assert_eq!(fs::read_to_string(&place).expect("the old page"), "old");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
}

#[test]
fn results_are_not_overwritten_by_their_report() {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("a.jsonl");
    let text = lines(&[point(setting())]);
    fs::write(&file, &text).expect("a file");
    let place = folder.path().join(".").join("a.jsonl");
    let problem = write(slice::from_ref(&file), &place, &mut Output::to(io::sink()));
    let problem = problem.expect_err("it is the same file").to_string();
    assert!(
        problem.ends_with("is a file of results. Give another path with -o"),
        "{problem}"
    );
    assert_eq!(fs::read_to_string(&file).expect("the results"), text);
}

#[test]
fn the_order_of_the_files_makes_no_difference() {
    let mut points = many();
    let first = page(&points);
    points.reverse();
    // Runs that began together keep the order of the files.
    let (devices, others): (Vec<Point>, Vec<Point>) = points
        .into_iter()
        .partition(|point| point.servers.len() == 1);
    let points: Vec<Point> = devices.into_iter().chain(others).collect();
    assert_eq!(page(&points), first);
}
