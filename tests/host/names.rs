//! The names that example 06 chooses.

#[path = "../../examples/common/names.rs"]
#[expect(dead_code, reason = "only what needs no memory")]
mod example;

/// A client of this library uses the name that librpma's uses with the same seed. These were read
/// off librpma's client where the seeds are small; the others off glibc's `rand`.
#[test]
fn a_seed_gives_the_name_of_glibcs_rand() {
    for (seed, name) in [
        (8, "Chet"),
        (9, "Piotr"),
        (11, "Piotr"),
        (12, "Lukasz"),
        // 0 stands for 1.
        (0, "Andy"),
        (1, "Andy"),
        (0x7fff_ffff, "Kacper"),
        // Negative in glibc's state.
        (0x8000_0000, "Derek"),
        (0x8000_0001, "Oksana"),
        (0xffff_fffe, "Lukasz"),
        // The argument of srand is the seed modulo 2³² − 1.
        (0xffff_ffff, "Andy"),
        (0xffff_ffff + 8, "Chet"),
    ] {
        assert_eq!(example::of_seed(seed), name, "seed {seed}");
    }
}
