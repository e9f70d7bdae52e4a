/*
 * The C side that listens: `server ADDR PORT OPERATION [ARGUMENT...]`.
 *
 *   connect LEN          tells the client's private data, answers with LEN bytes
 *   expose USAGE [PATH]  offers memory (of a device-DAX device) and tells what is in it in the end
 *   echo CLIENTS         sends messages back inverted; two clients share a receive queue
 *   imm                  exchanges messages and writes with immediate data
 *   close TIMES          disconnects at once and waits until it is told as often; 0: just deletes
 *   reject               rejects the client
 */
#include "interop.h"
#include <fcntl.h>
#include <sys/mman.h>

struct server {
	struct rpma_peer *peer;
	struct rpma_ep *ep;
	struct rpma_conn_cfg *cfg;
	struct rpma_mr_local *mr;
	uint8_t *memory;
	unsigned long argument; /* The operation's, if it has one. */
	bool pmem;
};

/* Accepts the next client with `pdata`, or with an offer; `receives` are posted before. */
static struct rpma_conn *accept_client(struct server *s, int receives,
				       const struct rpma_conn_private_data *pdata)
{
	struct offer offer = new_offer(s->mr, s->pmem);
	struct rpma_conn_private_data own = {&offer, sizeof(offer)}, theirs;
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;

	TRY(rpma_ep_next_conn_req(s->ep, s->cfg, &req));
	TRY(rpma_conn_req_get_private_data(req, &theirs));
	if (pdata != NULL)
		say_hex("data", theirs.ptr, theirs.len);
	for (int i = 0; i < receives; i++)
		TRY(rpma_conn_req_recv(req, s->mr, RECV_AT, 4096, op_context(0)));
	if (pdata == NULL)
		pdata = &own;
	TRY(rpma_conn_req_connect(&req, pdata->len > 0 ? pdata : NULL, &conn));
	EXPECT(next_event(conn) == RPMA_CONN_ESTABLISHED);
	return conn;
}

/* Waits until the client has disconnected. */
static void finish(struct rpma_conn *conn)
{
	EXPECT(next_event(conn) == RPMA_CONN_CLOSED);
	TRY(rpma_conn_disconnect(conn));
	TRY(rpma_conn_delete(&conn));
}

static void op_connect(struct server *s)
{
	uint8_t bytes[UINT8_MAX];
	struct rpma_conn_private_data pdata = {bytes, (uint8_t)s->argument};

	fill(bytes, pdata.len, 2);
	finish(accept_client(s, 0, &pdata));
}

static void op_expose(struct server *s)
{
	fill(s->memory, SHARED, 5);
	finish(accept_client(s, 0, NULL));
	say_hex("memory", s->memory, SHARED);
}

static void op_echo(struct server *s)
{
	struct rpma_conn *conns[2] = {NULL};
	uint32_t numbers[2] = {0};
	struct rpma_srq *srq = NULL;
	struct rpma_cq *cq = NULL, *rcq = NULL;
	int clients = s->argument == 2 ? 2 : 1;

	if (clients == 2) {
		TRY(rpma_srq_new(s->peer, NULL, &srq));
		TRY(rpma_conn_cfg_set_srq(s->cfg, srq));
		TRY(rpma_srq_recv(srq, s->mr, RECV_AT, 4096, op_context(0)));
		TRY(rpma_srq_get_rcq(srq, &rcq));
	}
	for (int i = 0; i < clients; i++) {
		conns[i] = accept_client(s, srq == NULL, NULL);
		TRY(rpma_conn_get_qp_num(conns[i], &numbers[i]));
	}
	if (srq == NULL)
		TRY(rpma_conn_get_rcq(conns[0], &rcq));
	for (int ended = 0; ended < clients;) {
		struct ibv_wc wc = expect_wc(rcq, IBV_WC_RECV, 0);
		int from = wc.qp_num != numbers[0];

		EXPECT(wc.qp_num == numbers[from]);
		for (size_t i = 0; i < wc.byte_len; i++)
			s->memory[SEND_AT + i] = s->memory[RECV_AT + i] ^ 0xFF;
		if (srq == NULL)
			TRY(rpma_recv(conns[0], s->mr, RECV_AT, 4096, op_context(0)));
		else
			TRY(rpma_srq_recv(srq, s->mr, RECV_AT, 4096, op_context(0)));
		TRY(rpma_conn_get_cq(conns[from], &cq));
		TRY(rpma_send(conns[from], s->mr, SEND_AT, wc.byte_len, RPMA_F_COMPLETION_ALWAYS,
			      op_context(1)));
		expect_wc(cq, IBV_WC_SEND, 1);
		ended += wc.byte_len == 0;
	}
	for (int i = 0; i < clients; i++)
		finish(conns[i]);
	TRY(rpma_srq_delete(&srq));
}

static void op_imm(struct server *s)
{
	struct rpma_conn *conn = accept_client(s, 3, NULL);
	struct rpma_mr_remote *remote = take_offer(conn);
	struct rpma_cq *cq = NULL, *rcq = NULL;

	TRY(rpma_conn_get_cq(conn, &cq));
	TRY(rpma_conn_get_rcq(conn, &rcq));
	say_imm(expect_wc(rcq, IBV_WC_RECV, 0));
	say_imm(expect_wc(rcq, IBV_WC_RECV_RDMA_WITH_IMM, 0));
	say_imm(expect_wc(rcq, IBV_WC_RECV_RDMA_WITH_IMM, 0));
	say_hex("message", s->memory + RECV_AT, 8);

	fill(s->memory + SEND_AT, 100, 4);
	TRY(rpma_send_with_imm(conn, s->mr, SEND_AT, 8, RPMA_F_COMPLETION_ALWAYS, 0x05060708,
			       op_context(1)));
	expect_wc(cq, IBV_WC_SEND, 1);
	TRY(rpma_write_with_imm(conn, remote, 64, s->mr, SEND_AT, 100, RPMA_F_COMPLETION_ALWAYS,
				0x80000001, op_context(2)));
	expect_wc(cq, IBV_WC_RDMA_WRITE, 2);
	finish(conn);
	TRY(rpma_mr_remote_delete(&remote));
	say_hex("memory", s->memory, SHARED);
}

static void op_close(struct server *s)
{
	struct rpma_conn *conn = accept_client(s, 0, NULL);

	if (s->argument > 0)
		TRY(rpma_conn_disconnect(conn));
	for (unsigned long i = 0; i < s->argument; i++)
		EXPECT(next_event(conn) == RPMA_CONN_CLOSED);
	TRY(rpma_conn_delete(&conn));
}

static void op_reject(struct server *s)
{
	struct rpma_conn_req *req = NULL;

	TRY(rpma_ep_next_conn_req(s->ep, s->cfg, &req));
	TRY(rpma_conn_req_delete(&req));
}

static void *map_device(const char *path)
{
	int fd = open(path, O_RDWR);
	void *memory = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	EXPECT(memory != MAP_FAILED);
	return memory;
}

static const struct {
	const char *name;
	void (*run)(struct server *s);
} OPERATIONS[] = {
	{"connect", op_connect}, {"expose", op_expose}, {"echo", op_echo},
	{"imm", op_imm},	 {"close", op_close},	{"reject", op_reject},
};

int main(int argc, char *argv[])
{
	struct server s = {.cfg = new_cfg()};
	int usage;

	EXPECT(argc >= 4);
	s.argument = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
	usage = strcmp(argv[3], "expose") == 0 ? (int)s.argument : USAGE;
	s.pmem = argc > 5;
	s.memory = s.pmem ? map_device(argv[5]) : new_memory();
	s.peer = new_peer(argv[1], RPMA_UTIL_IBV_CONTEXT_LOCAL);
	TRY(rpma_mr_reg(s.peer, s.memory, (size_t)2 * SHARED, usage, &s.mr));
	TRY(rpma_ep_listen(s.peer, argv[1], argv[2], &s.ep));
	SAY("listening");

	for (size_t i = 0; i < sizeof(OPERATIONS) / sizeof(OPERATIONS[0]); i++)
		if (strcmp(OPERATIONS[i].name, argv[3]) == 0)
			OPERATIONS[i].run(&s);

	TRY(rpma_ep_shutdown(&s.ep));
	TRY(rpma_mr_dereg(&s.mr));
	TRY(rpma_conn_cfg_delete(&s.cfg));
	TRY(rpma_peer_delete(&s.peer));
	SAY("done");
	return 0;
}
