//! Reading the output of Rust's test programs and of `runner.sh`, so that a test that exists and
//! was not reported is noticed.

/// How tests are marked that run only with `--long`: `#[ignore = "long: 20 minutes"]`.
const LONG: &str = "ignored, long:";

/// How tests are marked that a simulated fabric cannot have:
/// `#[cfg_attr(feature = "sim", ignore = "…")]`.
const ON_A_DEVICE: &str = "ignored, on a device only:";

/// The report of one or more test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// How many tests there are.
    pub(super) listed: usize,
    pub(super) passed: usize,
    /// Those that are named, with the reason if a program gave one in the same line.
    pub(super) failures: Vec<String>,
    pub(super) failed: usize,
    /// Left for `--long`.
    pub(super) long: usize,
    /// Left for a device.
    pub(super) elsewhere: usize,
    /// Ignored for no such reason.
    pub(super) ignored: usize,
    /// Why the machine was lost.
    pub(super) machine_lost: Option<String>,
}

impl Outcome {
    pub(super) fn of(text: &str) -> Self {
        let mut all = Self::default();
        // For a program that has not reported to its end: the counts if it never does.
        let mut open = Self::default();
        // The runner starts a program again for the tests that it did not come to, and prints
        // before how many it has.
        let mut announced = false;
        for line in text.lines() {
            if let Some(count) = line.strip_prefix("tests listed: ") {
                all.listed += count.parse().unwrap_or(0);
                announced = true;
            } else if let Some(count) = line.strip_prefix("running ") {
                all.close(&mut open);
                if !announced {
                    all.listed += number_before(count, " test");
                }
            } else if let Some(result) = line.strip_prefix("test result: ") {
                open.passed = number_before(result, " passed");
                open.failed = number_before(result, " failed");
                open.ignored = number_before(result, " ignored");
                all.close(&mut open);
            } else if let Some(why) = line.strip_prefix("machine lost: ") {
                all.machine_lost = Some(why.to_owned());
            } else if let Some(test) = line.strip_prefix("test ") {
                open.read(test);
            }
        }
        all.close(&mut open);
        all
    }

    /// A line about one test: `NAME ... RESULT`.
    fn read(&mut self, test: &str) {
        let Some((name, result)) = test.rsplit_once(" ... ") else {
            return;
        };
        if result == "ok" {
            self.passed += 1;
        } else if let Some(why) = result.strip_prefix("FAILED") {
            self.failed += 1;
            self.failures.push(format!("{name}{why}"));
        } else if result.starts_with("ignored") {
            self.ignored += 1;
            self.long += usize::from(result.starts_with(LONG));
            self.elsewhere += usize::from(result.starts_with(ON_A_DEVICE));
        }
    }

    fn close(&mut self, open: &mut Self) {
        let open = std::mem::take(open);
        self.passed += open.passed;
        self.failed += open.failed;
        self.long += open.long;
        self.elsewhere += open.elsewhere;
        self.ignored += open.ignored.saturating_sub(open.long + open.elsewhere);
        self.failures.extend(open.failures);
    }

    /// How many tests were not reported.
    pub(super) fn lost(&self) -> usize {
        let left = self.long + self.elsewhere + self.ignored;
        let reported = self.passed + self.failed + left;
        self.listed.saturating_sub(reported)
    }
}

/// The number in front of `word`: "ok. 3 passed; 1 failed" gives 3 for " passed".
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn results_of_several_programs_add_up() {
        let text = "running 4 tests\n\
                    test a ... ok\n\
                    test b ... ignored, long: an hour\n\
                    test c ... ignored\n\
                    test f ... ignored, on a device only: the sun\n\n\
                    test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; \
                    finished in 0.00s\n\n\
                    running 13 tests\n\
                    test d - should panic ... ok\n\
                    test e ... FAILED\n\
                    test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let expected = Outcome {
            listed: 17,
            passed: 13,
            failures: vec!["e".to_owned()],
            failed: 1,
            ignored: 1,
            long: 1,
            elsewhere: 1,
            machine_lost: None,
        };
        assert_eq!(Outcome::of(text), expected);
        assert_eq!(expected.lost(), 0);
    }

    /// Such as one that calls `exit(0)` in the middle: cargo takes it for a success.
    #[test]
    fn what_a_program_did_not_come_to_is_lost() {
        let text = "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... Aborted\n\
                    running 1 test\ntest d ... ok\n\
                    test result: ok. 1 passed; 0 failed; 0 ignored";
        let outcome = Outcome::of(text);
        let counts = (
            outcome.listed,
            outcome.passed,
            outcome.failed,
            outcome.lost(),
        );
        assert_eq!(counts, (4, 2, 1, 1));
    }

    /// Plays a test program with the tests a to h. Each behaves as its name means below.
    const PROGRAM: &str = r#"#!/bin/bash
        case " $* " in *" --list "*)
            names=(); for word; do [[ $word = -* ]] || names+=("$word"); done
            for name in a b c d e f g h; do
                [[ ${names[*]:-$name} = *$name* ]] && echo "$name: test"
            done
            exit ;;
        esac
        names=() seen=''
        for word; do
            if [ $word = --exact ]; then seen=yes; elif [ $seen ]; then names+=($word); fi
        done
        echo; echo "running ${#names[@]} tests"
        passed=0 failed=0 ignored=0
        for name in ${names[@]}; do
            printf "test $name ... "
            case $name in
            b) while :; do printf .; sleep 0.3; done ;;
            d) sleep 1000 & kill -SEGV $$ ;;
            e) echo "ignored, long: an hour"; ignored=1; continue ;;
            f) exit 0 ;;
            g) echo FAILED; failed=1; continue ;;
            esac
            echo ok; passed=$((passed + 1))
        done
        echo
        echo "test result: x. $passed passed; $failed failed; $ignored ignored; 0 measured"
        exit $failed"#;

    fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
        let program = dir.join("program");
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut runner = Command::new("bash");
        runner
            .arg(super::super::runner())
            .arg(program)
            .args(args)
            .env("RPMA_TEST_LIMIT", "2");
        let output = runner.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text)
    }

    /// A test that hangs (and prints), one that crashes (and leaves a process behind) and one that
    /// ends its program are named; all others run.
    #[test]
    fn each_test_is_reported_whatever_one_of_them_does() {
        let dir = tempfile::tempdir().unwrap();
        let (status, text) = run(dir.path(), &[]);
        assert_eq!(status, Some(101), "{text}");
        let outcome = Outcome::of(&text);
        let failures = [
            "b (stopped after 2 s)",
            "d (killed by signal 11)",
            "f (the program ended there, with status 0)",
            "g",
        ];
        assert_eq!(outcome.failures, failures, "{text}");
        let counts = (outcome.listed, outcome.passed, outcome.failed, outcome.long);
        assert_eq!(counts, (8, 3, 4, 1), "{text}");
        assert_eq!(outcome.lost(), 0, "{text}");
        let summary = text.split("failed, all together:\n").nth(1).unwrap();
        let summary: Vec<_> = summary.lines().map(str::trim).collect();
        assert_eq!(summary, failures, "{text}");
    }

    #[test]
    fn tests_are_chosen_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let (status, text) = run(dir.path(), &["a", "c", "h"]);
        assert_eq!(status, Some(0), "{text}");
        assert_eq!(Outcome::of(&text).passed, 3, "{text}");
        // A name that no test has is a mistake, not a success.
        let (status, text) = run(dir.path(), &["x"]);
        assert_eq!(status, Some(1), "{text}");
    }

    /// The output of a failed ssh.
    #[test]
    fn a_guest_that_does_not_answer_is_told_from_a_failed_test() {
        let dir = tempfile::tempdir().unwrap();
        let mut runner = Command::new("bash");
        runner
            .arg(super::super::runner())
            .arg("program")
            .env("RPMA_GUEST", "sh -c \"exit 255\"");
        runner.env("RPMA_GUEST", dir.path().join("ssh"));
        fs::write(dir.path().join("ssh"), "#!/bin/sh\nexit 255\n").unwrap();
        fs::set_permissions(dir.path().join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
        let output = runner.output().unwrap();
        assert_eq!(output.status.code(), Some(255));
        let outcome = Outcome::of(&String::from_utf8(output.stdout).unwrap());
        assert!(outcome.machine_lost.is_some());
    }
}
