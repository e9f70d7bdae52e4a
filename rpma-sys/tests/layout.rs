//! The structs that rpma reads or writes have the size and the offsets that the C compiler gives
//! them.
//!
//! bindgen takes its layout from libclang; this asks the compiler that built the C side (a
//! libclang with another target's ABI, or a blocklisted type that does not match, would show
//! here).

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use rpma_sys::*;

/// One row for each struct (`offset` is `None`: its size) and each field.
struct Row {
    name: &'static str,
    field: Option<&'static str>,
    rust: usize,
}

macro_rules! rows {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        vec![$(
            Row { name: stringify!($name), field: None, rust: size_of::<$name>() },
            $(Row { name: stringify!($name), field: Some(stringify!($field)), rust: offset_of!($name, $field) },)*
        )*]
    };
}

fn rows() -> Vec<Row> {
    #[cfg_attr(not(native_flush), expect(unused_mut, reason = "one more row with it"))]
    let mut rows = rows! {
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_cq { context, channel, cq_context, cqe }
        ibv_comp_channel { context, fd, refcnt }
        ibv_qp { context, qp_context, pd, qp_num, state }
        ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_start, wr_complete, wr_abort, wr_atomic_write }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, send_ops_flags }
        ibv_qp_attr { qp_state, qp_access_flags, cap, max_rd_atomic, min_rnr_timer, timeout }
        ibv_qp_init_attr { cap }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat }
        ibv_device_attr { max_mr_size, max_qp_wr, max_sge, max_cqe, max_srq_wr, max_qp_rd_atom, max_qp_init_rd_atom }
        ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, device_cap_flags_ex }
        ibv_port_attr { state, max_mtu, max_msg_sz, link_layer }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_pd { context, handle }
        ibv_srq_init_attr { srq_context, attr }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, pd }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num,
        }
        rdma_event_channel { fd }
    };
    #[cfg(native_flush)]
    rows.extend(rows! { ibv_qp_ex { wr_flush } });
    rows
}

#[test]
fn sizes_and_offsets_are_the_c_compilers() {
    let rows = rows();
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"wrapper.h\"\nint main(void)\n{\n",
    );
    for Row { name, field, .. } in &rows {
        let value = match field {
            None => format!("sizeof(struct {name})"),
            Some(field) => format!("offsetof(struct {name}, {field})"),
        };
        writeln!(source, "\tprintf(\"%zu\\n\", {value});")
            .expect("writing to a String cannot fail");
    }
    source.push_str("\treturn 0;\n}\n");

    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source_path, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&source_path, source).expect("the C source is written");
    let mut compile = Command::new("cc");
    compile
        .arg("-I")
        .arg(env!("CARGO_MANIFEST_DIR"))
        .args(include_flags());
    let status = compile
        .arg(&source_path)
        .arg("-o")
        .arg(&program)
        .status()
        .expect("cc starts");
    assert!(
        status.success(),
        "the C compiler accepts every struct and field"
    );
    let output = Command::new(&program)
        .output()
        .expect("the compiled program runs");
    let text = String::from_utf8(output.stdout).expect("numbers");
    let from_c: Vec<usize> = text
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();

    assert_eq!(from_c.len(), rows.len());
    for (row, c) in rows.iter().zip(from_c) {
        let field = row.field.unwrap_or("(size)");
        assert_eq!(
            row.rust, c,
            "struct {} {field}: Rust has {}, C has {c}",
            row.name, row.rust
        );
    }
}

fn include_flags() -> impl Iterator<Item = String> {
    ["libibverbs", "librdmacm"].into_iter().flat_map(|name| {
        let library = pkg_config::Config::new()
            .cargo_metadata(false)
            .probe(name)
            .expect("found when it was built");
        library
            .include_paths
            .into_iter()
            .map(|path: PathBuf| format!("-I{}", path.display()))
    })
}
