//! The program's lines that post, for the reports of the simulated fabric.
//!
//! Posts are made in closures, and some of them later than the program's call. So a call takes the
//! line of its caller, and enters it around the post. As in rpma, only a build with the feature
//! `sim` and with debug assertions has them: the instructions that are counted are those of a
//! device.

#[cfg(all(feature = "sim", debug_assertions))]
pub(crate) use rpma::sim::Place;

#[cfg(not(all(feature = "sim", debug_assertions)))]
pub(crate) use self::unnamed::Place;

#[cfg(not(all(feature = "sim", debug_assertions)))]
mod unnamed {
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Place;

    impl Place {
        #[inline(always)]
        pub(crate) fn caller() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn enter(self) -> Self {
            self
        }
    }
}
