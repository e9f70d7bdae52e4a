//! Exploration: the orders of a program that deviate little from a base order.
//!
//! Promises: small wrong programs are found with one deviation, and right ones pass; an order that
//! is left out has the events and images of another one; an order runs again alone.

mod again;
mod apart;
mod awaited;
mod cases;
mod found;
mod limits;
mod power;
mod programs;
mod replicas;
mod right;
mod served;
mod sets;
mod table;
mod threads;
