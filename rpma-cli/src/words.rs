//! The library's messages in the words of the command's options.
//!
//! The messages are for programmers, and name functions as remedies. A user of the command has no
//! program to change. Messages come from the other host as well, so the text itself is changed.

/// Parts of messages, and the parts that take their places. The order counts.
const PARTS: [(&str, &str); 18] = [
    (
        "connect again, and use ConnCfg::set_force_fallback on a network that loses packets",
        "on a network that loses packets, use `rpma check --fallback` or `rpma perf --method reading`",
    ),
    (
        "may not know the operation (ConnCfg::set_force_fallback)",
        "may not know the operation: use `rpma check --fallback` or `rpma perf --method reading`",
    ),
    (
        "connect again when they are back (ConnCfg::set_ack_timeout and set_retry_count set how long \
         the device tries)",
        "start the command again when they are back",
    ),
    (
        "ConnCfg::set_force_fallback avoids that",
        "`rpma check --fallback` or `rpma perf --method reading` avoids that",
    ),
    (
        ": connect again. Conn::failure or Conn::next_event has the cause. If they have no other \
         failure than this, the device has reported no cause to this side",
        ", and the device has reported no cause to this side",
    ),
    (
        ": poll the remaining completions, disconnect, and connect again",
        "",
    ),
    ("; drop the connection, and connect again", ""),
    (
        ". Send the 4 bytes as a message of their own, after the write",
        "",
    ),
    ("; connect again", ""),
    (": connect again", ""),
    (". PmemMap::part takes any part of a map", ""),
    (
        "MrUsage::FLUSH_TYPE_PERSISTENT promises the peer that flushed data survives a loss of power, \
         and this memory does not keep data. Register a PmemMap of persistent memory (DeviceDax or \
         FsDax), or register this memory for MrUsage::FLUSH_TYPE_VISIBILITY only. Mr::reg_raw \
         registers memory that you vouch for",
        "this memory loses its data with the power. A device-DAX keeps them",
    ),
    (
        "MrUsage::FLUSH_TYPE_PERSISTENT is for persistent memory: this memory is volatile, or",
        "Such flushes need persistent memory. This memory is volatile, or",
    ),
    (
        ", and a mapping must have the rights that the usage needs: use a device-DAX, or register \
         anonymous memory and copy to the file",
        ": use a device-DAX",
    ),
    (
        "flush with FlushType::Visibility and let the peer's program persist the data \
         (Method::Server)",
        "only the server's method of a commit makes them durable",
    ),
    (
        "use a native flush (Conn::has_native_flush, without ConnCfg::set_force_fallback), or let the \
         peer's program persist the data (Method::Server)",
        "use native flushes, or the server's method of a commit",
    ),
    (
        "device, rdma-core or ConnCfg::set_force_fallback is the reason",
        "the device, rdma-core or --fallback is the reason",
    ),
    (
        "the peer sent no Offer: its program passes the bytes of Offer::encode to ConnReq::connect",
        "the peer sent no Offer: start `rpma check` or `rpma perf` there",
    ),
];

/// The same message for a user of the command.
pub(crate) fn for_operator(message: &str) -> String {
    let mut text = message.to_owned();
    for (part, other) in PARTS {
        if text.contains(part) {
            text = text.replace(part, other);
        }
    }
    without_references(&text)
}

/// Leaves out the references to functions that are in parentheses.
fn without_references(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (") {
        kept.push_str(before);
        rest = match after.split_once(')') {
            Some((inside, behind)) if is_reference(inside) => behind,
            _ => {
                kept.push_str(" (");
                after
            }
        };
    }
    kept + rest
}

/// `Type::function` is one, and an IPv6 address is not.
fn is_reference(text: &str) -> bool {
    let begins = text.starts_with(|first: char| first.is_ascii_uppercase());
    let named = text.split_once("::").map(|(name, _)| name);
    begins && named.is_some_and(|name| name.chars().all(|char| char.is_ascii_alphabetic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_functions_are_left_out() {
        for (message, text) in [
            ("it ended (Conn::failure). See there", "it ended. See there"),
            ("it ended (Conn::failure", "it ended (Conn::failure"),
            ("a (b) and (Conn::wait) (c)", "a (b) and (c)"),
            ("host (fd00::2) (FD00::2)", "host (fd00::2) (FD00::2)"),
            ("it failed: connect again", "it failed"),
            ("", ""),
        ] {
            assert_eq!(for_operator(message), text);
        }
    }

    /// Promise: the remedies of a lossy network are options of the command.
    #[test]
    fn remedies_are_options() {
        let message = "a packet was lost: connect again, and use ConnCfg::set_force_fallback on a network \
                       that loses packets";
        let text = for_operator(message);
        assert!(text.contains("`rpma check --fallback`"), "{text}");
        assert!(!text.contains("::"), "{text}");
    }
}
