/*
 * The operations of tests/cost with librpma: `librpma ADDRESS`. Both ends are in this thread; everything is
 * posted first and polled later, so that a function has nothing else in it.
 */
#include "../programs/interop/interop.h"

#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <time.h>
#include <valgrind/callgrind.h>

/* As in cost.rs. */
#define ROUNDS 64
#define DEPTH 100
#define LEN 64
#define TIMED 3200
#define WARM 320

struct side {
	struct rpma_conn *conn;
	struct rpma_cq *cq;
};

static struct rpma_peer *peer;
static struct rpma_mr_local *local;
static struct rpma_mr_remote *remote;

/* What was counted since the last time is so many calls of it. */
#define COUNTED(name, times)                                                                       \
	do {                                                                                       \
		char counted[64];                                                                  \
		snprintf(counted, sizeof(counted), "%s %d", name, times);                          \
		CALLGRIND_DUMP_STATS_AT(counted);                                                  \
	} while (0)

#define MEASURED __attribute__((noinline)) static void

MEASURED measured_write(struct rpma_conn *conn)
{
	for (uintptr_t n = 0; n < ROUNDS; n++)
		TRY(rpma_write(conn, remote, n * LEN, local, n * LEN, LEN, RPMA_F_COMPLETION_ALWAYS, (void *)n));
}

MEASURED measured_flush(struct rpma_conn *conn)
{
	for (uintptr_t n = 0; n < ROUNDS; n++)
		TRY(rpma_flush(conn, remote, n * LEN, LEN, RPMA_FLUSH_TYPE_VISIBILITY,
			       RPMA_F_COMPLETION_ALWAYS, (void *)n));
}

MEASURED measured_read(struct rpma_conn *conn)
{
	for (uintptr_t n = 0; n < ROUNDS; n++)
		TRY(rpma_read(conn, local, n * LEN, remote, n * LEN, LEN, RPMA_F_COMPLETION_ALWAYS, (void *)n));
}

MEASURED measured_atomic_write(struct rpma_conn *conn)
{
	for (uintptr_t n = 0; n < ROUNDS; n++)
		TRY(rpma_atomic_write(conn, remote, n * LEN, (const char *)&n, RPMA_F_COMPLETION_ALWAYS,
				      (void *)n));
}

MEASURED measured_send(struct rpma_conn *conn)
{
	for (uintptr_t n = 0; n < ROUNDS; n++)
		TRY(rpma_send(conn, local, n * LEN, LEN, RPMA_F_COMPLETION_ALWAYS, (void *)n));
}

MEASURED measured_recv(struct rpma_conn *conn)
{
	for (uintptr_t n = 0; n < ROUNDS; n++)
		TRY(rpma_recv(conn, local, n * LEN, LEN, (void *)n));
}

MEASURED measured_get_wc_0(struct rpma_cq *cq, struct ibv_wc *wc)
{
	for (int n = 0; n < ROUNDS; n++)
		EXPECT(rpma_cq_get_wc(cq, 1, wc, NULL) == RPMA_E_NO_COMPLETION);
}

MEASURED measured_get_wc_1(struct rpma_cq *cq, struct ibv_wc *wc)
{
	for (int n = 0; n < ROUNDS; n++)
		TRY(rpma_cq_get_wc(cq, 1, wc, NULL));
}

MEASURED measured_get_wc_16(struct rpma_cq *cq, struct ibv_wc *wc)
{
	for (int n = 0; n < ROUNDS / 16; n++) {
		int got;

		TRY(rpma_cq_get_wc(cq, 16, wc, &got));
		EXPECT(got == 16);
	}
}

/* Polls until all operations have succeeded. */
static void settle(struct rpma_cq *cq)
{
	for (int left = ROUNDS; left > 0;) {
		struct ibv_wc wc;
		int ret = rpma_cq_get_wc(cq, 1, &wc, NULL);

		EXPECT(ret == 0 || ret == RPMA_E_NO_COMPLETION);
		if (ret == 0) {
			EXPECT(wc.status == IBV_WC_SUCCESS);
			left--;
		}
	}
}

#define MEASURE(name, conn)                                                                        \
	do {                                                                                       \
		measured_##name((conn));                                                           \
		COUNTED(#name, ROUNDS);                                                            \
	} while (0)

static struct side side(struct rpma_conn_req *req)
{
	struct side side;

	TRY(rpma_conn_req_connect(&req, NULL, &side.conn));
	TRY(rpma_conn_get_cq(side.conn, &side.cq));
	return side;
}

static void established(struct side side)
{
	enum rpma_conn_event event;

	TRY(rpma_conn_next_event(side.conn, &event));
	EXPECT(event == RPMA_CONN_ESTABLISHED);
}

/* Both ends of a connection. */
static void pair(const char *addr, const char *port, struct side *client, struct side *server)
{
	struct rpma_conn_cfg *cfg;
	struct rpma_conn_req *req;
	struct rpma_peer_cfg *peer_cfg;
	struct rpma_ep *ep;

	TRY(rpma_conn_cfg_new(&cfg));
	TRY(rpma_conn_cfg_set_sq_size(cfg, DEPTH));
	TRY(rpma_conn_cfg_set_rq_size(cfg, DEPTH));
	TRY(rpma_conn_cfg_set_cq_size(cfg, 2 * DEPTH));
	TRY(rpma_ep_listen(peer, addr, port, &ep));
	TRY(rpma_conn_req_new(peer, addr, port, cfg, &req));
	*client = side(req);
	TRY(rpma_ep_next_conn_req(ep, cfg, &req));
	*server = side(req);
	established(*client);
	established(*server);
	TRY(rpma_peer_cfg_new(&peer_cfg));
	TRY(rpma_peer_cfg_set_direct_write_to_pmem(peer_cfg, true));
	TRY(rpma_conn_apply_remote_peer_cfg(client->conn, peer_cfg));
	TRY(rpma_ep_shutdown(&ep));
}

/* Waits until what was posted has completed. */
static void came(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
}

static void native(struct side client, struct side server)
{
	struct ibv_wc wcs[16];

	MEASURE(write, client.conn);
	settle(client.cq);
	MEASURE(flush, client.conn);
	settle(client.cq);
	MEASURE(read, client.conn);
	settle(client.cq);
	MEASURE(atomic_write, client.conn);
	settle(client.cq);
	MEASURE(recv, server.conn);
	MEASURE(send, client.conn);
	settle(client.cq);
	settle(server.cq);

	measured_get_wc_0(client.cq, wcs);
	COUNTED("get_wc_0", ROUNDS);
	measured_write(client.conn);
	COUNTED("write", ROUNDS);
	came();
	measured_get_wc_1(client.cq, wcs);
	COUNTED("get_wc_1", ROUNDS);
	measured_write(client.conn);
	COUNTED("write", ROUNDS);
	came();
	measured_get_wc_16(client.cq, wcs);
	COUNTED("get_wc_16", ROUNDS / 16);
}

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Posts so many writes and their flush, and waits for it, over and over; prints the nanoseconds of one write, and those
 * of them that posting took. */
static void timed(struct side client, uintptr_t depth)
{
	long long start = 0, posting = 0;

	for (uintptr_t n = 0; n < (WARM + TIMED) / depth; n++) {
		struct ibv_wc wc;
		int ret;

		if (n == WARM / depth) {
			start = now();
			posting = 0;
		}
		posting -= now();
		for (uintptr_t k = 0; k < depth; k++)
			TRY(rpma_write(client.conn, remote, 0, local, 0, LEN,
				       RPMA_F_COMPLETION_ON_ERROR, (void *)n));
		TRY(rpma_flush(client.conn, remote, 0, LEN, RPMA_FLUSH_TYPE_VISIBILITY,
			       RPMA_F_COMPLETION_ALWAYS, (void *)n));
		posting += now();
		do {
			ret = rpma_cq_get_wc(client.cq, 1, &wc, NULL);
		} while (ret == RPMA_E_NO_COMPLETION);
		EXPECT(ret == 0 && wc.status == IBV_WC_SUCCESS);
	}
	SAY("%lld %lld", (now() - start) / TIMED, posting / TIMED);
}

static int (*query_device_ex)(struct ibv_context *, const struct ibv_query_device_ex_input *,
			      struct ibv_device_attr_ex *, size_t);

/* The device, without operations beyond plain verbs: then librpma flushes by reading. */
static int query_plain_device(struct ibv_context *context,
			      const struct ibv_query_device_ex_input *input,
			      struct ibv_device_attr_ex *attr, size_t size)
{
	int ret = query_device_ex(context, input, attr, size);

	attr->device_cap_flags_ex = 0;
	return ret;
}

/* `librpma ADDRESS PORT native|fallback|timed-1|timed-16` */
int main(int argc, char *argv[])
{
	struct ibv_context *context;
	struct side client, server;
	void *memory;
	char descriptor[64];
	size_t size;
	int usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC |
		    RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY |
		    RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV;

	EXPECT(argc == 4);
	TRY(rpma_utils_get_ibv_context(argv[1], RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	if (strcmp(argv[3], "fallback") == 0) {
		struct verbs_context *verbs = verbs_get_ctx(context);

		query_device_ex = verbs->query_device_ex;
		verbs->query_device_ex = query_plain_device;
	}
	TRY(rpma_peer_new(context, &peer));
	memory = aligned_alloc(4096, 4096);
	EXPECT(memory != NULL);
	memset(memory, 1, 4096);
	TRY(rpma_mr_reg(peer, memory, 4096, usage, &local));
	TRY(rpma_mr_get_descriptor_size(local, &size));
	EXPECT(size <= sizeof(descriptor));
	TRY(rpma_mr_get_descriptor(local, descriptor));
	TRY(rpma_mr_remote_from_descriptor(descriptor, size, &remote));
	pair(argv[1], argv[2], &client, &server);
	if (strncmp(argv[3], "timed-", 6) == 0) {
		timed(client, strtoul(argv[3] + 6, NULL, 10));
	} else if (query_device_ex == NULL) {
		native(client, server);
	} else {
		measured_flush(client.conn);
		COUNTED("flush_fallback", ROUNDS);
		settle(client.cq);
	}
	return 0;
}
