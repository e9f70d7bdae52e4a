/* What rpma-sys binds. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/*
 * verbs.h shadows these four functions by macros of the same name, which bindgen cannot see; binding the exported symbols instead
 * would give their old semantics (ibv_query_port fills a shorter struct, ibv_reg_mr ignores the optional access flags).
 * These inline functions expand the macros; bindgen's wrap_static_fns turns them into symbols.
 */
static inline struct ibv_device **rpma_sys_get_device_list(int *num_devices)
{
	return ibv_get_device_list(num_devices);
}

static inline int rpma_sys_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr)
{
	return ibv_query_port(context, port_num, port_attr);
}

static inline struct ibv_mr *rpma_sys_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access)
{
	return ibv_reg_mr(pd, addr, length, access);
}

static inline struct ibv_mr *rpma_sys_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return ibv_reg_mr_iova(pd, addr, length, iova, access);
}
