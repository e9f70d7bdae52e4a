/*
 * What the C programs share, those of tests/programs/interop and those of tests/programs/swapped.
 *
 * What they find goes to stdout, one line each, and the test that started them judges it. Anything
 * that the C library refuses ends the program with exit status 1.
 */
#ifndef INTEROP_H
#define INTEROP_H

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <librpma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The memory that the other side may use, and as much behind it for data of this side. */
#define SHARED 8192
#define SEND_AT SHARED
#define RECV_AT (SHARED + 4096)
#define MR_DESC 21

/* For whatever is not offered for something else. */
#define USAGE                                                                                      \
	(RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST |              \
	 RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV)

/* Calls a function of the library, which must succeed. */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		int try_ret = (call);                                                              \
		if (try_ret != 0)                                                                  \
			fail(__LINE__, #call, rpma_err_2str(try_ret));                             \
	} while (0)

/* Something that must hold. */
#define EXPECT(condition)                                                                          \
	do {                                                                                       \
		if (!(condition))                                                                  \
			fail(__LINE__, #condition, "does not hold");                               \
	} while (0)

static inline void fail(int line, const char *what, const char *why)
{
	fprintf(stderr, "line %d: %s: %s (errno: %s)\n", line, what, why, strerror(errno));
	exit(1);
}

/* Prints a line, at once: stdout is a pipe. */
#define SAY(...)                                                                                   \
	do {                                                                                       \
		printf(__VA_ARGS__);                                                               \
		putchar('\n');                                                                     \
		fflush(stdout);                                                                    \
	} while (0)

static inline void say_hex(const char *name, const void *data, size_t len)
{
	printf("%s ", name);
	for (size_t i = 0; i < len; i++)
		printf("%02x", ((const uint8_t *)data)[i]);
	SAY("%s", "");
}

/* The bytes of tests/common/mod.rs `pattern`. */
static inline void fill(uint8_t *bytes, size_t len, uint64_t seed)
{
	uint64_t state = seed | 1;

	for (size_t i = 0; i < len; i++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		bytes[i] = (uint8_t)(state >> 56);
	}
}

static inline struct rpma_peer *new_peer(const char *addr, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *context = NULL;
	struct rpma_peer *peer = NULL;

	TRY(rpma_utils_get_ibv_context(addr, type, &context));
	TRY(rpma_peer_new(context, &peer));
	return peer;
}

/* Zeroed memory for both halves. */
static inline uint8_t *new_memory(void)
{
	uint8_t *memory = aligned_alloc(4096, 2 * SHARED);

	EXPECT(memory != NULL);
	memset(memory, 0, 2 * SHARED);
	return memory;
}

/* What each side tells the other: a region's descriptor and its platform's. */
struct offer {
	uint8_t mr[MR_DESC];
	uint8_t pcfg[1];
};

static inline struct offer new_offer(const struct rpma_mr_local *mr, bool direct_write)
{
	struct offer offer;
	struct rpma_peer_cfg *pcfg = NULL;
	size_t mr_size = 0, pcfg_size = 0;

	TRY(rpma_mr_get_descriptor_size(mr, &mr_size));
	TRY(rpma_peer_cfg_new(&pcfg));
	TRY(rpma_peer_cfg_get_descriptor_size(pcfg, &pcfg_size));
	EXPECT(mr_size == sizeof(offer.mr) && pcfg_size == sizeof(offer.pcfg));
	TRY(rpma_mr_get_descriptor(mr, offer.mr));
	TRY(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, direct_write));
	TRY(rpma_peer_cfg_get_descriptor(pcfg, offer.pcfg));
	TRY(rpma_peer_cfg_delete(&pcfg));
	return offer;
}

/* Takes the other side's offer from the connection's private data. */
static inline struct rpma_mr_remote *take_offer(struct rpma_conn *conn)
{
	struct rpma_conn_private_data pdata;
	struct rpma_peer_cfg *pcfg = NULL;
	struct rpma_mr_remote *remote = NULL;
	const uint8_t *bytes;

	TRY(rpma_conn_get_private_data(conn, &pdata));
	EXPECT(pdata.ptr != NULL && pdata.len >= sizeof(struct offer));
	bytes = pdata.ptr;
	TRY(rpma_mr_remote_from_descriptor(bytes, MR_DESC, &remote));
	TRY(rpma_peer_cfg_from_descriptor(bytes + MR_DESC, 1, &pcfg));
	TRY(rpma_conn_apply_remote_peer_cfg(conn, pcfg));
	TRY(rpma_peer_cfg_delete(&pcfg));
	return remote;
}

/* Waits for the next event and tells it. */
static inline enum rpma_conn_event next_event(struct rpma_conn *conn)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;

	TRY(rpma_conn_next_event(conn, &event));
	SAY("event %s", rpma_utils_conn_event_2str(event));
	return event;
}

/* Waits for the next completion, whatever its status. */
static inline struct ibv_wc next_wc(struct rpma_cq *cq)
{
	struct ibv_wc wc;
	int ret;

	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		TRY(rpma_cq_wait(cq));
	TRY(ret);
	return wc;
}

/* Waits for the next completion, which must be this one. */
static inline struct ibv_wc expect_wc(struct rpma_cq *cq, enum ibv_wc_opcode opcode, uint64_t id)
{
	struct ibv_wc wc = next_wc(cq);

	EXPECT(wc.status == IBV_WC_SUCCESS);
	EXPECT(wc.opcode == opcode);
	EXPECT(wc.wr_id == id);
	return wc;
}

/* Tells what a receive with immediate data brought. */
static inline void say_imm(struct ibv_wc wc)
{
	EXPECT(wc.wc_flags & IBV_WC_WITH_IMM);
	SAY("imm %d %u %08x", wc.opcode, wc.byte_len, ntohl(wc.imm_data));
}

static inline void *op_context(uint64_t id)
{
	return (void *)(uintptr_t)id;
}

/* A configuration with a completion queue for receives. */
static inline struct rpma_conn_cfg *new_cfg(void)
{
	struct rpma_conn_cfg *cfg = NULL;

	TRY(rpma_conn_cfg_new(&cfg));
	TRY(rpma_conn_cfg_set_rcq_size(cfg, 10));
	return cfg;
}

#endif
