//! Programs with a thread for their reactor (`Reactor::on_thread`), and threads that await by
//! `block_on`: on a simulated fabric they wait in its time and in its order.

mod ends;
mod orders;
mod program;
mod times;
