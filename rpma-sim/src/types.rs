//! The types of `verbs.h` and `rdma_cma.h`, as bindgen makes them for rdma-core 56. Those that
//! neither rpma nor the simulator uses are left out.
//!
//! They were generated once and cut. If the layout is C's it is checked, so that tests use the same
//! layout as a build against the real headers. Calls that no code makes have the type [`Unused`]
//! here.

#![allow(
    non_camel_case_types,
    missing_docs,
    missing_debug_implementations,
    clippy::exhaustive_structs
)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_ushort, c_void};

use libc::{
    pthread_cond_t, pthread_mutex_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
};

/// A C enum: a number. Some values have names.
macro_rules! numbers {
    ($name:ident: $number:ident { $($value:ident = $is:expr),* $(,)? }) => {
        #[repr(transparent)]
        #[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
        pub struct $name(pub $number);
        impl $name {
            $(pub const $value: Self = Self($is);)*
        }
    };
}

/// The size and the alignment of a C struct, and where its fields are.
macro_rules! layout {
    ($name:ident, $size:literal, $align:literal, [$($field:ident: $offset:literal),* $(,)?]) => {
        #[cfg(target_arch = "x86_64")]
        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == $align);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}

/// A C struct that begins as zeros.
macro_rules! zeroed {
    ($name:ident) => {
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers, newtypes of integers, raw pointers and optional function
                // pointers only, and structs and unions of them: zeros are valid.
                unsafe { std::mem::zeroed() }
            }
        }
    };
}

/// C structs that occur only as pointers.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        #[derive(Debug, Copy, Clone)]
        pub struct $name {
            _unused: [u8; 0],
        }
    )*};
}

/// A call that no code makes.
pub type Unused = Option<unsafe extern "C" fn()>;

pub type __u16 = c_ushort;

pub type __u32 = c_uint;

pub type __u64 = c_ulonglong;

pub type __be16 = __u16;

pub type __be32 = __u32;

pub type __be64 = __u64;

numbers!(ib_uverbs_advise_mr_advice: c_uint {
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH = 0,
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
});

#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_gid {
    pub raw: [u8; 16usize],
    pub global: ibv_gid__bindgen_ty_1,
}
layout!(ibv_gid, 16, 8, [raw: 0, global: 0]);
zeroed!(ibv_gid);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_gid__bindgen_ty_1 {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}
layout!(ibv_gid__bindgen_ty_1, 16, 8, [subnet_prefix: 0, interface_id: 8]);

numbers!(ibv_node_type: c_int {
    IBV_NODE_UNKNOWN = -1,
    IBV_NODE_CA = 1,
    IBV_NODE_SWITCH = 2,
    IBV_NODE_ROUTER = 3,
    IBV_NODE_RNIC = 4,
    IBV_NODE_USNIC = 5,
    IBV_NODE_USNIC_UDP = 6,
    IBV_NODE_UNSPECIFIED = 7,
});

numbers!(ibv_transport_type: c_int {
    IBV_TRANSPORT_UNKNOWN = -1,
    IBV_TRANSPORT_IB = 0,
    IBV_TRANSPORT_IWARP = 1,
    IBV_TRANSPORT_USNIC = 2,
    IBV_TRANSPORT_USNIC_UDP = 3,
    IBV_TRANSPORT_UNSPECIFIED = 4,
});

numbers!(ibv_atomic_cap: c_uint {
    IBV_ATOMIC_NONE = 0,
    IBV_ATOMIC_HCA = 1,
    IBV_ATOMIC_GLOB = 2,
});

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64usize],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(ibv_device_attr, 232, 8, [fw_ver: 0, node_guid: 64, sys_image_guid: 72, max_mr_size: 80, page_size_cap: 88, vendor_id: 96, vendor_part_id: 100, hw_ver: 104, max_qp: 108, max_qp_wr: 112, device_cap_flags: 116, max_sge: 120, max_sge_rd: 124, max_cq: 128, max_cqe: 132, max_mr: 136, max_pd: 140, max_qp_rd_atom: 144, max_ee_rd_atom: 148, max_res_rd_atom: 152, max_qp_init_rd_atom: 156, max_ee_init_rd_atom: 160, atomic_cap: 164, max_ee: 168, max_rdd: 172, max_mw: 176, max_raw_ipv6_qp: 180, max_raw_ethy_qp: 184, max_mcast_grp: 188, max_mcast_qp_attach: 192, max_total_mcast_qp_attach: 196, max_ah: 200, max_fmr: 204, max_map_per_fmr: 208, max_srq: 212, max_srq_wr: 216, max_srq_sge: 220, max_pkeys: 224, local_ca_ack_delay: 226, phys_port_cnt: 227]);
zeroed!(ibv_device_attr);

numbers!(ibv_odp_transport_cap_bits: c_uint {
    IBV_ODP_SUPPORT_SEND = 1,
    IBV_ODP_SUPPORT_RECV = 2,
    IBV_ODP_SUPPORT_WRITE = 4,
    IBV_ODP_SUPPORT_READ = 8,
    IBV_ODP_SUPPORT_ATOMIC = 16,
    IBV_ODP_SUPPORT_SRQ_RECV = 32,
});

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_caps__bindgen_ty_1,
}
layout!(ibv_odp_caps, 24, 8, [general_caps: 0, per_transport_caps: 8]);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_odp_caps__bindgen_ty_1 {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
layout!(ibv_odp_caps__bindgen_ty_1, 12, 4, [rc_odp_caps: 0, uc_odp_caps: 4, ud_odp_caps: 8]);

numbers!(ibv_odp_general_caps: c_uint {
    IBV_ODP_SUPPORT = 1,
    IBV_ODP_SUPPORT_IMPLICIT = 2,
});

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}
layout!(ibv_tso_caps, 8, 4, [max_tso: 0, supported_qpts: 4]);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}
layout!(ibv_rss_caps, 32, 8, [supported_qpts: 0, max_rwq_indirection_tables: 4, max_rwq_indirection_table_size: 8, rx_hash_fields_mask: 16, rx_hash_function: 24]);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_packet_pacing_caps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}
layout!(ibv_packet_pacing_caps, 12, 4, [qp_rate_limit_min: 0, qp_rate_limit_max: 4, supported_qpts: 8]);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}
layout!(ibv_tm_caps, 20, 4, [max_rndv_hdr_size: 0, max_num_tags: 4, flags: 8, max_ops: 12, max_sge: 16]);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}
layout!(ibv_cq_moderation_caps, 4, 2, [max_cq_count: 0, max_cq_period: 2]);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}
layout!(ibv_pci_atomic_caps, 6, 2, [fetch_add: 0, swap: 2, compare_swap: 4]);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
layout!(ibv_device_attr_ex, 400, 8, [orig_attr: 0, comp_mask: 232, odp_caps: 240, completion_timestamp_mask: 264, hca_core_clock: 272, device_cap_flags_ex: 280, tso_caps: 288, rss_caps: 296, max_wq_type_rq: 328, packet_pacing_caps: 332, raw_packet_caps: 344, tm_caps: 348, cq_mod_caps: 368, max_dm_size: 376, pci_atomic_caps: 384, xrc_odp_caps: 392, phys_port_cnt_ex: 396]);
zeroed!(ibv_device_attr_ex);

numbers!(ibv_mtu: c_uint {
    IBV_MTU_256 = 1,
    IBV_MTU_512 = 2,
    IBV_MTU_1024 = 3,
    IBV_MTU_2048 = 4,
    IBV_MTU_4096 = 5,
});

numbers!(ibv_port_state: c_uint {
    IBV_PORT_NOP = 0,
    IBV_PORT_DOWN = 1,
    IBV_PORT_INIT = 2,
    IBV_PORT_ARMED = 3,
    IBV_PORT_ACTIVE = 4,
    IBV_PORT_ACTIVE_DEFER = 5,
});

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}
layout!(ibv_port_attr, 56, 4, [state: 0, max_mtu: 4, active_mtu: 8, gid_tbl_len: 12, port_cap_flags: 16, max_msg_sz: 20, bad_pkey_cntr: 24, qkey_viol_cntr: 28, pkey_tbl_len: 32, lid: 34, sm_lid: 36, lmc: 38, max_vl_num: 39, sm_sl: 40, subnet_timeout: 41, init_type_reply: 42, active_width: 43, active_speed: 44, phys_state: 45, link_layer: 46, flags: 47, port_cap_flags2: 48, active_speed_ex: 52]);
zeroed!(ibv_port_attr);

numbers!(ibv_event_type: c_uint {
    IBV_EVENT_CQ_ERR = 0,
    IBV_EVENT_QP_FATAL = 1,
    IBV_EVENT_QP_REQ_ERR = 2,
    IBV_EVENT_QP_ACCESS_ERR = 3,
    IBV_EVENT_COMM_EST = 4,
    IBV_EVENT_SQ_DRAINED = 5,
    IBV_EVENT_PATH_MIG = 6,
    IBV_EVENT_PATH_MIG_ERR = 7,
    IBV_EVENT_DEVICE_FATAL = 8,
    IBV_EVENT_PORT_ACTIVE = 9,
    IBV_EVENT_PORT_ERR = 10,
    IBV_EVENT_LID_CHANGE = 11,
    IBV_EVENT_PKEY_CHANGE = 12,
    IBV_EVENT_SM_CHANGE = 13,
    IBV_EVENT_SRQ_ERR = 14,
    IBV_EVENT_SRQ_LIMIT_REACHED = 15,
    IBV_EVENT_QP_LAST_WQE_REACHED = 16,
    IBV_EVENT_CLIENT_REREGISTER = 17,
    IBV_EVENT_GID_CHANGE = 18,
    IBV_EVENT_WQ_FATAL = 19,
});

#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_async_event {
    pub element: ibv_async_event__bindgen_ty_1,
    pub event_type: ibv_event_type,
}
layout!(ibv_async_event, 16, 8, [element: 0, event_type: 8]);
zeroed!(ibv_async_event);

#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_async_event__bindgen_ty_1 {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: c_int,
}
layout!(ibv_async_event__bindgen_ty_1, 8, 8, [cq: 0, qp: 0, srq: 0, wq: 0, port_num: 0]);
zeroed!(ibv_async_event__bindgen_ty_1);

numbers!(ibv_wc_status: c_uint {
    IBV_WC_SUCCESS = 0,
    IBV_WC_LOC_LEN_ERR = 1,
    IBV_WC_LOC_QP_OP_ERR = 2,
    IBV_WC_LOC_EEC_OP_ERR = 3,
    IBV_WC_LOC_PROT_ERR = 4,
    IBV_WC_WR_FLUSH_ERR = 5,
    IBV_WC_MW_BIND_ERR = 6,
    IBV_WC_BAD_RESP_ERR = 7,
    IBV_WC_LOC_ACCESS_ERR = 8,
    IBV_WC_REM_INV_REQ_ERR = 9,
    IBV_WC_REM_ACCESS_ERR = 10,
    IBV_WC_REM_OP_ERR = 11,
    IBV_WC_RETRY_EXC_ERR = 12,
    IBV_WC_RNR_RETRY_EXC_ERR = 13,
    IBV_WC_LOC_RDD_VIOL_ERR = 14,
    IBV_WC_REM_INV_RD_REQ_ERR = 15,
    IBV_WC_REM_ABORT_ERR = 16,
    IBV_WC_INV_EECN_ERR = 17,
    IBV_WC_INV_EEC_STATE_ERR = 18,
    IBV_WC_FATAL_ERR = 19,
    IBV_WC_RESP_TIMEOUT_ERR = 20,
    IBV_WC_GENERAL_ERR = 21,
    IBV_WC_TM_ERR = 22,
    IBV_WC_TM_RNDV_INCOMPLETE = 23,
});

numbers!(ibv_wc_opcode: c_uint {
    IBV_WC_SEND = 0,
    IBV_WC_RDMA_WRITE = 1,
    IBV_WC_RDMA_READ = 2,
    IBV_WC_COMP_SWAP = 3,
    IBV_WC_FETCH_ADD = 4,
    IBV_WC_BIND_MW = 5,
    IBV_WC_LOCAL_INV = 6,
    IBV_WC_TSO = 7,
    IBV_WC_FLUSH = 8,
    IBV_WC_ATOMIC_WRITE = 9,
    IBV_WC_RECV = 128,
    IBV_WC_RECV_RDMA_WITH_IMM = 129,
    IBV_WC_TM_ADD = 130,
    IBV_WC_TM_DEL = 131,
    IBV_WC_TM_SYNC = 132,
    IBV_WC_TM_RECV = 133,
    IBV_WC_TM_NO_TAG = 134,
    IBV_WC_DRIVER1 = 135,
    IBV_WC_DRIVER2 = 136,
    IBV_WC_DRIVER3 = 137,
});

numbers!(ibv_wc_flags: c_uint {
    IBV_WC_GRH = 1,
    IBV_WC_WITH_IMM = 2,
    IBV_WC_IP_CSUM_OK = 4,
    IBV_WC_WITH_INV = 8,
    IBV_WC_TM_SYNC_REQ = 16,
    IBV_WC_TM_MATCH = 32,
    IBV_WC_TM_DATA_VALID = 64,
});

#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub __bindgen_anon_1: ibv_wc__bindgen_ty_1,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
layout!(ibv_wc, 48, 8, [wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, qp_num: 28, src_qp: 32, wc_flags: 36, pkey_index: 40, slid: 42, sl: 44, dlid_path_bits: 45]);
zeroed!(ibv_wc);
impl std::fmt::Debug for ibv_wc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ibv_wc")
            .field("wr_id", &self.wr_id)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_wc__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}
layout!(ibv_wc__bindgen_ty_1, 4, 4, [imm_data: 0, invalidated_rkey: 0]);
zeroed!(ibv_wc__bindgen_ty_1);

numbers!(ibv_access_flags: c_uint {
    IBV_ACCESS_LOCAL_WRITE = 1,
    IBV_ACCESS_REMOTE_WRITE = 2,
    IBV_ACCESS_REMOTE_READ = 4,
    IBV_ACCESS_REMOTE_ATOMIC = 8,
    IBV_ACCESS_MW_BIND = 16,
    IBV_ACCESS_ZERO_BASED = 32,
    IBV_ACCESS_ON_DEMAND = 64,
    IBV_ACCESS_HUGETLB = 128,
    IBV_ACCESS_FLUSH_GLOBAL = 256,
    IBV_ACCESS_FLUSH_PERSISTENT = 512,
    IBV_ACCESS_RELAXED_ORDERING = 1048576,
});

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}
layout!(ibv_mw_bind_info, 32, 8, [mr: 0, addr: 8, length: 16, mw_access_flags: 24]);
zeroed!(ibv_mw_bind_info);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout!(ibv_pd, 16, 8, [context: 0, handle: 8]);
zeroed!(ibv_pd);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(ibv_mr, 48, 8, [context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40]);
zeroed!(ibv_mr);

numbers!(ibv_mw_type: c_uint {
    IBV_MW_TYPE_1 = 1,
    IBV_MW_TYPE_2 = 2,
});

#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
layout!(ibv_global_route, 24, 8, [dgid: 0, flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22]);
zeroed!(ibv_global_route);

#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout!(ibv_ah_attr, 32, 8, [grh: 0, dlid: 24, sl: 26, src_path_bits: 27, static_rate: 28, is_global: 29, port_num: 30]);
zeroed!(ibv_ah_attr);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
layout!(ibv_srq_attr, 12, 4, [max_wr: 0, max_sge: 4, srq_limit: 8]);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}
layout!(ibv_srq_init_attr, 24, 8, [srq_context: 0, attr: 8]);
zeroed!(ibv_srq_init_attr);

numbers!(ibv_qp_type: c_uint {
    IBV_QPT_RC = 2,
    IBV_QPT_UC = 3,
    IBV_QPT_UD = 4,
    IBV_QPT_RAW_PACKET = 8,
    IBV_QPT_XRC_SEND = 9,
    IBV_QPT_XRC_RECV = 10,
    IBV_QPT_DRIVER = 255,
});

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
layout!(ibv_qp_cap, 20, 4, [max_send_wr: 0, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 12, max_inline_data: 16]);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: c_int,
}
layout!(ibv_qp_init_attr, 64, 8, [qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56]);
zeroed!(ibv_qp_init_attr);

numbers!(ibv_qp_init_attr_mask: c_uint {
    IBV_QP_INIT_ATTR_PD = 1,
    IBV_QP_INIT_ATTR_XRCD = 2,
    IBV_QP_INIT_ATTR_CREATE_FLAGS = 4,
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 8,
    IBV_QP_INIT_ATTR_IND_TABLE = 16,
    IBV_QP_INIT_ATTR_RX_HASH = 32,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64,
});

numbers!(ibv_qp_create_send_ops_flags: c_uint {
    IBV_QP_EX_WITH_RDMA_WRITE = 1,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 2,
    IBV_QP_EX_WITH_SEND = 4,
    IBV_QP_EX_WITH_SEND_WITH_IMM = 8,
    IBV_QP_EX_WITH_RDMA_READ = 16,
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 32,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 64,
    IBV_QP_EX_WITH_LOCAL_INV = 128,
    IBV_QP_EX_WITH_BIND_MW = 256,
    IBV_QP_EX_WITH_SEND_WITH_INV = 512,
    IBV_QP_EX_WITH_TSO = 1024,
    IBV_QP_EX_WITH_FLUSH = 2048,
    IBV_QP_EX_WITH_ATOMIC_WRITE = 4096,
});

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}
layout!(ibv_rx_hash_conf, 24, 8, [rx_hash_function: 0, rx_hash_key_len: 1, rx_hash_key: 8, rx_hash_fields_mask: 16]);
zeroed!(ibv_rx_hash_conf);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub rx_hash_conf: ibv_rx_hash_conf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
layout!(ibv_qp_init_attr_ex, 136, 8, [qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56, comp_mask: 60, pd: 64, xrcd: 72, create_flags: 80, max_tso_header: 84, rwq_ind_tbl: 88, rx_hash_conf: 96, source_qpn: 120, send_ops_flags: 128]);
zeroed!(ibv_qp_init_attr_ex);

numbers!(ibv_qp_attr_mask: c_uint {
    IBV_QP_STATE = 1,
    IBV_QP_CUR_STATE = 2,
    IBV_QP_EN_SQD_ASYNC_NOTIFY = 4,
    IBV_QP_ACCESS_FLAGS = 8,
    IBV_QP_PKEY_INDEX = 16,
    IBV_QP_PORT = 32,
    IBV_QP_QKEY = 64,
    IBV_QP_AV = 128,
    IBV_QP_PATH_MTU = 256,
    IBV_QP_TIMEOUT = 512,
    IBV_QP_RETRY_CNT = 1024,
    IBV_QP_RNR_RETRY = 2048,
    IBV_QP_RQ_PSN = 4096,
    IBV_QP_MAX_QP_RD_ATOMIC = 8192,
    IBV_QP_ALT_PATH = 16384,
    IBV_QP_MIN_RNR_TIMER = 32768,
    IBV_QP_SQ_PSN = 65536,
    IBV_QP_MAX_DEST_RD_ATOMIC = 131072,
    IBV_QP_PATH_MIG_STATE = 262144,
    IBV_QP_CAP = 524288,
    IBV_QP_DEST_QPN = 1048576,
    IBV_QP_RATE_LIMIT = 33554432,
});

numbers!(ibv_qp_state: c_uint {
    IBV_QPS_RESET = 0,
    IBV_QPS_INIT = 1,
    IBV_QPS_RTR = 2,
    IBV_QPS_RTS = 3,
    IBV_QPS_SQD = 4,
    IBV_QPS_SQE = 5,
    IBV_QPS_ERR = 6,
    IBV_QPS_UNKNOWN = 7,
});

numbers!(ibv_mig_state: c_uint {
    IBV_MIG_MIGRATED = 0,
    IBV_MIG_REARM = 1,
    IBV_MIG_ARMED = 2,
});

#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: ibv_mig_state,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
layout!(ibv_qp_attr, 144, 8, [qp_state: 0, cur_qp_state: 4, path_mtu: 8, path_mig_state: 12, qkey: 16, rq_psn: 20, sq_psn: 24, dest_qp_num: 28, qp_access_flags: 32, cap: 36, ah_attr: 56, alt_ah_attr: 88, pkey_index: 120, alt_pkey_index: 122, en_sqd_async_notify: 124, sq_draining: 125, max_rd_atomic: 126, max_dest_rd_atomic: 127, min_rnr_timer: 128, port_num: 129, timeout: 130, retry_cnt: 131, rnr_retry: 132, alt_port_num: 133, alt_timeout: 134, rate_limit: 136]);
zeroed!(ibv_qp_attr);

numbers!(ibv_wr_opcode: c_uint {
    IBV_WR_RDMA_WRITE = 0,
    IBV_WR_RDMA_WRITE_WITH_IMM = 1,
    IBV_WR_SEND = 2,
    IBV_WR_SEND_WITH_IMM = 3,
    IBV_WR_RDMA_READ = 4,
    IBV_WR_ATOMIC_CMP_AND_SWP = 5,
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    IBV_WR_LOCAL_INV = 7,
    IBV_WR_BIND_MW = 8,
    IBV_WR_SEND_WITH_INV = 9,
    IBV_WR_TSO = 10,
    IBV_WR_DRIVER1 = 11,
    IBV_WR_FLUSH = 14,
    IBV_WR_ATOMIC_WRITE = 15,
});

numbers!(ibv_send_flags: c_uint {
    IBV_SEND_FENCE = 1,
    IBV_SEND_SIGNALED = 2,
    IBV_SEND_SOLICITED = 4,
    IBV_SEND_INLINE = 8,
    IBV_SEND_IP_CSUM = 16,
});

numbers!(ibv_placement_type: c_uint {
    IBV_FLUSH_GLOBAL = 1,
    IBV_FLUSH_PERSISTENT = 2,
});

numbers!(ibv_selectivity_level: c_uint {
    IBV_FLUSH_RANGE = 0,
    IBV_FLUSH_MR = 1,
});

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
layout!(ibv_sge, 16, 8, [addr: 0, length: 8, lkey: 12]);

#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: ibv_wr_opcode,
    pub send_flags: c_uint,
    pub __bindgen_anon_1: ibv_send_wr__bindgen_ty_1,
    pub wr: ibv_send_wr__bindgen_ty_2,
    pub qp_type: ibv_send_wr__bindgen_ty_3,
    pub __bindgen_anon_2: ibv_send_wr__bindgen_ty_4,
}
layout!(ibv_send_wr, 128, 8, [wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, wr: 40, qp_type: 72]);
zeroed!(ibv_send_wr);

#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidate_rkey: u32,
}
layout!(ibv_send_wr__bindgen_ty_1, 4, 4, [imm_data: 0, invalidate_rkey: 0]);
zeroed!(ibv_send_wr__bindgen_ty_1);

#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_2 {
    pub rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    pub atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    pub ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
}
layout!(ibv_send_wr__bindgen_ty_2, 32, 8, [rdma: 0, atomic: 0, ud: 0]);
zeroed!(ibv_send_wr__bindgen_ty_2);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    pub remote_addr: u64,
    pub rkey: u32,
}
layout!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, 16, 8, [remote_addr: 0, rkey: 8]);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
layout!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, 32, 8, [remote_addr: 0, compare_add: 8, swap: 16, rkey: 24]);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
layout!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, 16, 8, [ah: 0, remote_qpn: 8, remote_qkey: 12]);
zeroed!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3);

#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_3 {
    pub xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1,
}
layout!(ibv_send_wr__bindgen_ty_3, 4, 4, [xrc: 0]);
zeroed!(ibv_send_wr__bindgen_ty_3);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
    pub remote_srqn: u32,
}
layout!(ibv_send_wr__bindgen_ty_3__bindgen_ty_1, 4, 4, [remote_srqn: 0]);

#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_4 {
    pub bind_mw: ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    pub tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2,
}
layout!(ibv_send_wr__bindgen_ty_4, 48, 8, [bind_mw: 0, tso: 0]);
zeroed!(ibv_send_wr__bindgen_ty_4);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
layout!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, 48, 8, [mw: 0, rkey: 8, bind_info: 16]);
zeroed!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    pub hdr: *mut c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
layout!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, 16, 8, [hdr: 0, hdr_sz: 8, mss: 10]);
zeroed!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}
layout!(ibv_recv_wr, 32, 8, [wr_id: 0, next: 8, sg_list: 16, num_sge: 24]);
zeroed!(ibv_recv_wr);

#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
layout!(ibv_srq, 128, 8, [context: 0, srq_context: 8, pd: 16, handle: 24, mutex: 32, cond: 72, events_completed: 120]);
zeroed!(ibv_srq);

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state,
    pub qp_type: ibv_qp_type,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
layout!(ibv_qp, 160, 8, [context: 0, qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48, qp_num: 52, state: 56, qp_type: 60, mutex: 64, cond: 104, events_completed: 152]);
zeroed!(ibv_qp);

#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Unused,
    pub wr_atomic_fetch_add: Unused,
    pub wr_bind_mw: Unused,
    pub wr_local_inv: Unused,
    pub wr_rdma_read: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
    pub wr_rdma_write:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
    pub wr_rdma_write_imm: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32),
    >,
    pub wr_send: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: __be32)>,
    pub wr_send_inv: Unused,
    pub wr_send_tso: Unused,
    pub wr_set_ud_addr: Unused,
    pub wr_set_xrc_srqn: Unused,
    pub wr_set_inline_data:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize)>,
    pub wr_set_inline_data_list: Unused,
    pub wr_set_sge:
        Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)>,
    pub wr_set_sge_list: Unused,
    pub wr_start: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_complete: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_atomic_write: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            atomic_wr: *const c_void,
        ),
    >,
    pub wr_flush: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            len: usize,
            type_: u8,
            level: u8,
        ),
    >,
}
layout!(ibv_qp_ex, 360, 8, [qp_base: 0, comp_mask: 160, wr_id: 168, wr_flags: 176, wr_atomic_cmp_swp: 184, wr_atomic_fetch_add: 192, wr_bind_mw: 200, wr_local_inv: 208, wr_rdma_read: 216, wr_rdma_write: 224, wr_rdma_write_imm: 232, wr_send: 240, wr_send_imm: 248, wr_send_inv: 256, wr_send_tso: 264, wr_set_ud_addr: 272, wr_set_xrc_srqn: 280, wr_set_inline_data: 288, wr_set_inline_data_list: 296, wr_set_sge: 304, wr_set_sge_list: 312, wr_start: 320, wr_complete: 328, wr_abort: 336, wr_atomic_write: 344, wr_flush: 352]);
zeroed!(ibv_qp_ex);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}
layout!(ibv_comp_channel, 16, 8, [context: 0, fd: 8, refcnt: 12]);
zeroed!(ibv_comp_channel);

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
layout!(ibv_cq, 128, 8, [context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32, cond: 72, comp_events_completed: 120, async_events_completed: 124]);
zeroed!(ibv_cq);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ibv_device_ops {
    pub _dummy1: Unused,
    pub _dummy2: Unused,
}
layout!(_ibv_device_ops, 16, 8, [_dummy1: 0, _dummy2: 8]);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device {
    pub _ops: _ibv_device_ops,
    pub node_type: ibv_node_type,
    pub transport_type: ibv_transport_type,
    pub name: [c_char; 64usize],
    pub dev_name: [c_char; 64usize],
    pub dev_path: [c_char; 256usize],
    pub ibdev_path: [c_char; 256usize],
}
layout!(ibv_device, 664, 8, [_ops: 0, node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408]);
zeroed!(ibv_device);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_context_ops {
    pub _compat_query_device: Unused,
    pub _compat_query_port: Unused,
    pub _compat_alloc_pd: Unused,
    pub _compat_dealloc_pd: Unused,
    pub _compat_reg_mr: Unused,
    pub _compat_rereg_mr: Unused,
    pub _compat_dereg_mr: Unused,
    pub alloc_mw: Unused,
    pub bind_mw: Unused,
    pub dealloc_mw: Unused,
    pub _compat_create_cq: Unused,
    pub poll_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int>,
    pub req_notify_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
    pub _compat_cq_event: Unused,
    pub _compat_resize_cq: Unused,
    pub _compat_destroy_cq: Unused,
    pub _compat_create_srq: Unused,
    pub _compat_modify_srq: Unused,
    pub _compat_query_srq: Unused,
    pub _compat_destroy_srq: Unused,
    pub post_srq_recv: Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    pub _compat_create_qp: Unused,
    pub _compat_query_qp: Unused,
    pub _compat_modify_qp: Unused,
    pub _compat_destroy_qp: Unused,
    pub post_send: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> c_int,
    >,
    pub post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    pub _compat_create_ah: Unused,
    pub _compat_destroy_ah: Unused,
    pub _compat_attach_mcast: Unused,
    pub _compat_detach_mcast: Unused,
    pub _compat_async_event: Unused,
}
layout!(ibv_context_ops, 256, 8, [_compat_query_device: 0, _compat_query_port: 8, _compat_alloc_pd: 16, _compat_dealloc_pd: 24, _compat_reg_mr: 32, _compat_rereg_mr: 40, _compat_dereg_mr: 48, alloc_mw: 56, bind_mw: 64, dealloc_mw: 72, _compat_create_cq: 80, poll_cq: 88, req_notify_cq: 96, _compat_cq_event: 104, _compat_resize_cq: 112, _compat_destroy_cq: 120, _compat_create_srq: 128, _compat_modify_srq: 136, _compat_query_srq: 144, _compat_destroy_srq: 152, post_srq_recv: 160, _compat_create_qp: 168, _compat_query_qp: 176, _compat_modify_qp: 184, _compat_destroy_qp: 192, post_send: 200, post_recv: 208, _compat_create_ah: 216, _compat_destroy_ah: 224, _compat_attach_mcast: 232, _compat_detach_mcast: 240, _compat_async_event: 248]);

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut c_void,
}
layout!(ibv_context, 328, 8, [device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320]);
zeroed!(ibv_context);

numbers!(rdma_cm_event_type: c_uint {
    RDMA_CM_EVENT_ADDR_RESOLVED = 0,
    RDMA_CM_EVENT_ADDR_ERROR = 1,
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
    RDMA_CM_EVENT_ROUTE_ERROR = 3,
    RDMA_CM_EVENT_CONNECT_REQUEST = 4,
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
    RDMA_CM_EVENT_CONNECT_ERROR = 6,
    RDMA_CM_EVENT_UNREACHABLE = 7,
    RDMA_CM_EVENT_REJECTED = 8,
    RDMA_CM_EVENT_ESTABLISHED = 9,
    RDMA_CM_EVENT_DISCONNECTED = 10,
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
    RDMA_CM_EVENT_MULTICAST_JOIN = 12,
    RDMA_CM_EVENT_MULTICAST_ERROR = 13,
    RDMA_CM_EVENT_ADDR_CHANGE = 14,
    RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
});

numbers!(rdma_port_space: c_uint {
    RDMA_PS_IPOIB = 2,
    RDMA_PS_TCP = 262,
    RDMA_PS_UDP = 273,
    RDMA_PS_IB = 319,
});

#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: __be16,
}
layout!(rdma_ib_addr, 40, 8, [sgid: 0, dgid: 16, pkey: 32]);
zeroed!(rdma_ib_addr);

#[repr(C)]
pub struct rdma_addr {
    pub __bindgen_anon_1: rdma_addr__bindgen_ty_1,
    pub __bindgen_anon_2: rdma_addr__bindgen_ty_2,
    pub addr: rdma_addr__bindgen_ty_3,
}
layout!(rdma_addr, 296, 8, [addr: 256]);
zeroed!(rdma_addr);

#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_addr__bindgen_ty_1 {
    pub src_addr: sockaddr,
    pub src_sin: sockaddr_in,
    pub src_sin6: sockaddr_in6,
    pub src_storage: sockaddr_storage,
}
layout!(rdma_addr__bindgen_ty_1, 128, 8, [src_addr: 0, src_sin: 0, src_sin6: 0, src_storage: 0]);
zeroed!(rdma_addr__bindgen_ty_1);

#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_addr__bindgen_ty_2 {
    pub dst_addr: sockaddr,
    pub dst_sin: sockaddr_in,
    pub dst_sin6: sockaddr_in6,
    pub dst_storage: sockaddr_storage,
}
layout!(rdma_addr__bindgen_ty_2, 128, 8, [dst_addr: 0, dst_sin: 0, dst_sin6: 0, dst_storage: 0]);
zeroed!(rdma_addr__bindgen_ty_2);

#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_addr__bindgen_ty_3 {
    pub ibaddr: rdma_ib_addr,
}
layout!(rdma_addr__bindgen_ty_3, 40, 8, [ibaddr: 0]);
zeroed!(rdma_addr__bindgen_ty_3);

#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}
layout!(rdma_route, 312, 8, [addr: 0, path_rec: 296, num_paths: 304]);
zeroed!(rdma_route);

#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rdma_event_channel {
    pub fd: c_int,
}
layout!(rdma_event_channel, 4, 4, [fd: 0]);

#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type,
}
layout!(rdma_cm_id, 416, 8, [verbs: 0, channel: 8, context: 16, qp: 24, route: 32, ps: 344, port_num: 348, event: 352, send_cq_channel: 360, send_cq: 368, recv_cq_channel: 376, recv_cq: 384, srq: 392, pd: 400, qp_type: 408]);
zeroed!(rdma_cm_id);

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
layout!(rdma_conn_param, 24, 8, [private_data: 0, private_data_len: 8, responder_resources: 9, initiator_depth: 10, flow_control: 11, retry_count: 12, rnr_retry_count: 13, srq: 14, qp_num: 16]);
zeroed!(rdma_conn_param);

#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}
layout!(rdma_ud_param, 56, 8, [private_data: 0, private_data_len: 8, ah_attr: 16, qp_num: 48, qkey: 52]);
zeroed!(rdma_ud_param);

#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    pub status: c_int,
    pub param: rdma_cm_event__bindgen_ty_1,
}
layout!(rdma_cm_event, 80, 8, [id: 0, listen_id: 8, event: 16, status: 20, param: 24]);
zeroed!(rdma_cm_event);

#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_cm_event__bindgen_ty_1 {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}
layout!(rdma_cm_event__bindgen_ty_1, 56, 8, [conn: 0, ud: 0]);
zeroed!(rdma_cm_event__bindgen_ty_1);

numbers!(rdma_option_level: c_uint {});
pub const RDMA_OPTION_ID: rdma_option_level = rdma_option_level(0);

numbers!(rdma_option_name: c_uint {});
pub const RDMA_OPTION_ID_ACK_TIMEOUT: rdma_option_name = rdma_option_name(3);

opaque!(ibv_ah ibv_mw ibv_rwq_ind_table ibv_sa_path_rec ibv_wq ibv_xrcd);
