/*
 * The servers of librpma's examples: `peer ADDR PORT server PROTOCOL [ARGUMENT...]`. Bytes are given and
 * told in hexadecimal digits.
 *
 *   greet BYTES                (01) tells the client's private data, answers, disconnects
 *   answer BYTES               accepts with any private data, and waits until the client leaves
 *   offer USAGE SIZE OFFSET DIRECT BYTES [PATH]
 *                              (02, 04, 05, 07) offers memory (of a device-DAX device) that begins
 *                              with BYTES, tells in the end what is in it. DIRECT is `none`, or the
 *                              platform's description is sent as well: `on` or `off`
 *   fetch SIZE CLIENTS         (03, 06) reads that much of each client's data and tells it
 *   ping CLIENTS               (08, 12) answers each value with the next one, until each client
 *   srq CLIENTS                has sent the end marker; (08srq, 13) over a shared receive queue
 *   gpspm OFFSET SIZE ANSWER   (09) tells the request, and in the end what is in the memory
 *   send-imm                   (10)
 *   write-imm                  (11)
 */
#ifndef SERVER_H
#define SERVER_H

#include "peers.h"
#include <fcntl.h>
#include <sys/mman.h>

#define MAX_CLIENTS 4

/* Accepts the next client; `receives` are posted before. */
static struct rpma_conn *accept_client(struct side *s, void *data, size_t len, int receives,
				       size_t receive_len)
{
	struct rpma_conn_private_data pdata = {data, (uint8_t)len};
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;

	TRY(rpma_ep_next_conn_req(s->ep, s->cfg, &req));
	for (int i = 0; i < receives; i++)
		TRY(rpma_conn_req_recv(req, s->local, RECV_AT, receive_len, op_context(0)));
	TRY(rpma_conn_req_connect(&req, len > 0 ? &pdata : NULL, &conn));
	EXPECT(next_event(conn) == RPMA_CONN_ESTABLISHED);
	TRY(rpma_conn_get_cq(conn, &s->cq));
	TRY(rpma_conn_get_rcq(conn, &s->rcq));
	return conn;
}

static void server_greet(struct side *s)
{
	size_t len = unhex(s->args[0], s->memory, UINT8_MAX);
	struct rpma_conn *conn = accept_client(s, s->memory, len, 0, 0);

	say_data(conn);
	leave(conn);
}

static void answer(struct side *s)
{
	size_t len = unhex(s->args[0], s->memory, UINT8_MAX);

	be_left(accept_client(s, s->memory, len, 0, 0));
}

static uint8_t *map_device(const char *path)
{
	int fd = open(path, O_RDWR);
	void *memory = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	EXPECT(memory != MAP_FAILED);
	return memory;
}

static void server_offer(struct side *s)
{
	size_t size = number(s->args[1]);
	uint8_t *base = s->args[5] == NULL ? s->memory : map_device(s->args[5]);
	uint8_t data[COMMON_DATA];

	EXPECT(size <= SHARED);
	unhex(s->args[4], base, size);
	reg(s, base, size, (int)number(s->args[0]));
	describe(s, data, number(s->args[2]), s->args[3]);
	be_left(accept_client(s, data, sizeof(data), 0, 0));
	say_hex("memory", base, size);
}

static void fetch(struct side *s)
{
	size_t size = number(s->args[0]), clients = number(s->args[1]);
	struct rpma_conn *conns[MAX_CLIENTS];

	EXPECT(clients <= MAX_CLIENTS && size <= SHARED);
	reg(s, NULL, 0, 0);
	for (size_t i = 0; i < clients; i++) {
		size_t offset;

		conns[i] = accept_client(s, NULL, 0, 0, 0);
		offset = take_data(s, conns[i]);
		TRY(rpma_read(conns[i], s->local, 0, s->remote, offset, size,
			      RPMA_F_COMPLETION_ALWAYS, op_context(1)));
		expect_wc(s->cq, IBV_WC_RDMA_READ, 1);
		say_hex("memory", s->memory, size);
		TRY(rpma_mr_remote_delete(&s->remote));
	}
	/* All of them are connected at the same time. */
	for (size_t i = 0; i < clients; i++)
		leave(conns[i]);
}

/* Posts the receive of a slot; each client has at most one message on its way. */
static void receive(struct side *s, struct rpma_conn *conn, struct rpma_srq *srq, size_t slot)
{
	size_t at = RECV_AT + slot * sizeof(uint64_t);

	if (srq == NULL)
		TRY(rpma_recv(conn, s->local, at, sizeof(uint64_t), op_context(slot)));
	else
		TRY(rpma_srq_recv(srq, s->local, at, sizeof(uint64_t), op_context(slot)));
}

/* Answers all clients until each has said that it ends. */
static void serve(struct side *s, struct rpma_srq *srq)
{
	size_t clients = number(s->args[0]), ended = 0;
	struct rpma_conn *conns[MAX_CLIENTS] = {NULL};
	uint32_t numbers[MAX_CLIENTS];

	EXPECT(clients <= (srq == NULL ? 1 : MAX_CLIENTS));
	for (size_t i = 0; i < clients; i++) {
		if (srq != NULL)
			receive(s, NULL, srq, i);
		conns[i] = accept_client(s, NULL, 0, srq == NULL, sizeof(uint64_t));
		TRY(rpma_conn_get_qp_num(conns[i], &numbers[i]));
	}
	if (srq != NULL)
		TRY(rpma_srq_get_rcq(srq, &s->rcq));
	while (ended < clients) {
		struct ibv_wc wc = next_wc(s->rcq);
		uint8_t *message = s->memory + RECV_AT + wc.wr_id * sizeof(uint64_t);
		uint64_t value;
		size_t from = 0;

		EXPECT(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
		EXPECT(wc.wr_id < clients && wc.byte_len == sizeof(value));
		say_hex("received", message, sizeof(value));
		memcpy(&value, message, sizeof(value));
		if (value == UINT64_MAX) {
			ended++;
			continue;
		}
		while (from < clients && numbers[from] != wc.qp_num)
			from++;
		EXPECT(from < clients);
		value++;
		memcpy(s->memory + SEND_AT, &value, sizeof(value));
		receive(s, conns[from], srq, wc.wr_id);
		TRY(rpma_conn_get_cq(conns[from], &s->cq));
		send_message(s, conns[from], sizeof(value));
	}
	/*
	 * librpma's servers disconnect here, and may take the acknowledgement of the last message away with
	 * the connection: whether its client sees that is luck.
	 */
	for (size_t i = 0; i < clients; i++)
		be_left(conns[i]);
}

static void server_ping(struct side *s)
{
	reg(s, NULL, 0, 0);
	serve(s, NULL);
}

static void ping_srq(struct side *s)
{
	struct rpma_srq *srq = NULL;

	reg(s, NULL, 0, 0);
	TRY(rpma_srq_new(s->peer, NULL, &srq));
	TRY(rpma_conn_cfg_set_srq(s->cfg, srq));
	serve(s, srq);
	TRY(rpma_srq_delete(&srq));
}

static void server_gpspm(struct side *s)
{
	size_t offset = number(s->args[0]), size = number(s->args[1]), len;
	uint8_t data[COMMON_DATA];
	struct rpma_conn *conn;

	EXPECT(size <= SHARED);
	reg(s, s->memory, size, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
	describe(s, data, offset, "none");
	conn = accept_client(s, data, sizeof(data), 1, MESSAGE);
	say_hex("request", s->memory + RECV_AT, expect_wc(s->rcq, IBV_WC_RECV, 0).byte_len);
	len = unhex(s->args[2], s->memory + SEND_AT, MESSAGE);
	/*
	 * The client leaves when it has the response, and may take the acknowledgement away with the
	 * connection: whether librpma's server, which waits for that, sees it is luck.
	 */
	TRY(rpma_send(conn, s->local, SEND_AT, len, RPMA_F_COMPLETION_ON_ERROR, op_context(1)));
	be_left(conn);
	say_hex("memory", s->memory, size);
}

static void take_send_imm(struct side *s)
{
	struct rpma_conn *conn;
	struct ibv_wc wc;

	reg(s, NULL, 0, 0);
	conn = accept_client(s, NULL, 0, 1, TEXT);
	say_data(conn);
	wc = expect_wc(s->rcq, IBV_WC_RECV, 0);
	say_imm(wc);
	say_hex("message", s->memory + RECV_AT, wc.byte_len);
	be_left(conn);
}

static void take_write_imm(struct side *s)
{
	uint8_t data[COMMON_DATA];
	struct rpma_conn *conn;

	reg(s, s->memory, TEXT, RPMA_MR_USAGE_WRITE_DST);
	describe(s, data, 0, "none");
	conn = accept_client(s, data, sizeof(data), 1, 1);
	say_imm(expect_wc(s->rcq, IBV_WC_RECV_RDMA_WITH_IMM, 0));
	say_hex("memory", s->memory, TEXT);
	be_left(conn);
}

static const struct protocol SERVERS[] = {
	{"greet", server_greet},
	{"answer", answer},
	{"offer", server_offer},
	{"fetch", fetch},
	{"ping", server_ping},
	{"srq", ping_srq},
	{"gpspm", server_gpspm},
	{"send-imm", take_send_imm},
	{"write-imm", take_write_imm},
};

#endif
