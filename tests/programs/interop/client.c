/*
 * The C side that connects: `client ADDR PORT OPERATION [ARGUMENT...]`.
 *
 *   connect LEN       sends LEN bytes of private data, tells those of the answer
 *   write, read       writes to, or reads, the region that the server offers
 *   flush TYPE        writes and flushes (0: persistent, 1: visibility), tells the completions
 *   atomic            writes 8 bytes at once, at the beginning and at the end
 *   send              sends messages, the last one empty, and checks that they come back inverted
 *   imm               exchanges messages and writes with immediate data
 */
#include "interop.h"

struct client {
	struct rpma_conn *conn;
	struct rpma_cq *cq, *rcq;
	struct rpma_mr_local *mr;
	struct rpma_mr_remote *remote;
	uint8_t *memory;
	/* The operation's, if it has one. */
	unsigned long argument;
};

/* Where the writes of the tests go, and how long they are. */
static const size_t PARTS[][2] = {{13, 1}, {20, 7}, {40, 8}, {64, 1000}, {2000, 4096}};
#define PART_COUNT (sizeof(PARTS) / sizeof(PARTS[0]))

static void do_write(struct client *c, int flags, size_t i)
{
	fill(c->memory + SEND_AT, PARTS[i][1], i + 1);
	TRY(rpma_write(c->conn, c->remote, PARTS[i][0], c->mr, SEND_AT, PARTS[i][1], flags,
		       op_context(i)));
}

static void op_connect(struct client *c)
{
	struct rpma_conn_private_data pdata;

	TRY(rpma_conn_get_private_data(c->conn, &pdata));
	say_hex("data", pdata.ptr, pdata.len);
}

static void op_write(struct client *c)
{
	for (size_t i = 0; i < PART_COUNT; i++) {
		do_write(c, RPMA_F_COMPLETION_ALWAYS, i);
		expect_wc(c->cq, IBV_WC_RDMA_WRITE, i);
	}
}

static void op_flush(struct client *c)
{
	enum rpma_flush_type type = (enum rpma_flush_type)c->argument;

	for (size_t i = 0; i < PART_COUNT; i++) {
		struct ibv_wc wc;

		do_write(c, RPMA_F_COMPLETION_ON_ERROR, i);
		TRY(rpma_flush(c->conn, c->remote, PARTS[i][0], PARTS[i][1], type,
			       RPMA_F_COMPLETION_ALWAYS, op_context(100 + i)));
		wc = next_wc(c->cq);
		if (wc.status != IBV_WC_SUCCESS) {
			SAY("failed %d", wc.status);
			return;
		}
		EXPECT(wc.wr_id == 100 + i);
		SAY("flushed %d", wc.opcode);
	}
}

static void op_read(struct client *c)
{
	uint8_t expected[SHARED];

	fill(expected, SHARED, 5);
	for (size_t i = 0; i < PART_COUNT; i++) {
		TRY(rpma_read(c->conn, c->mr, RECV_AT, c->remote, PARTS[i][0], PARTS[i][1],
			      RPMA_F_COMPLETION_ALWAYS, op_context(i)));
		expect_wc(c->cq, IBV_WC_RDMA_READ, i);
		EXPECT(memcmp(c->memory + RECV_AT, expected + PARTS[i][0], PARTS[i][1]) == 0);
	}
}

static void op_atomic(struct client *c)
{
	for (size_t at = 0; at < SHARED; at += SHARED - 8) {
		char word[8];

		fill((uint8_t *)word, sizeof(word), at + 1);
		TRY(rpma_atomic_write(c->conn, c->remote, at, word, RPMA_F_COMPLETION_ALWAYS,
				      op_context(at)));
		expect_wc(c->cq, IBV_WC_ATOMIC_WRITE, at);
	}
}

static void op_send(struct client *c)
{
	static const size_t LENGTHS[] = {1, 8, 1000, 4096, 0};

	for (size_t i = 0; i < sizeof(LENGTHS) / sizeof(LENGTHS[0]); i++) {
		size_t len = LENGTHS[i];
		struct ibv_wc wc;

		fill(c->memory + SEND_AT, len, i + 1);
		TRY(rpma_send(c->conn, len > 0 ? c->mr : NULL, len > 0 ? SEND_AT : 0, len,
			      RPMA_F_COMPLETION_ALWAYS, op_context(i)));
		expect_wc(c->cq, IBV_WC_SEND, i);
		wc = expect_wc(c->rcq, IBV_WC_RECV, 0);
		EXPECT(wc.byte_len == len);
		for (size_t at = 0; at < len; at++)
			EXPECT((c->memory[SEND_AT + at] ^ c->memory[RECV_AT + at]) == 0xFF);
		TRY(rpma_recv(c->conn, c->mr, RECV_AT, 4096, op_context(0)));
	}
}

static void op_imm(struct client *c)
{
	uint8_t expected[100];

	/* The server's messages take two receives; one is posted. */
	TRY(rpma_recv(c->conn, NULL, 0, 0, op_context(1)));

	fill(c->memory + SEND_AT, 100, 3);
	TRY(rpma_send_with_imm(c->conn, c->mr, SEND_AT, 8, RPMA_F_COMPLETION_ALWAYS, 0x01020304,
			       op_context(1)));
	expect_wc(c->cq, IBV_WC_SEND, 1);
	TRY(rpma_write_with_imm(c->conn, c->remote, 64, c->mr, SEND_AT, 100,
				RPMA_F_COMPLETION_ALWAYS, 0xfffefdfc, op_context(2)));
	expect_wc(c->cq, IBV_WC_RDMA_WRITE, 2);
	TRY(rpma_write_with_imm(c->conn, NULL, 0, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, 7,
				op_context(3)));
	expect_wc(c->cq, IBV_WC_RDMA_WRITE, 3);

	fill(expected, 100, 4);
	say_imm(expect_wc(c->rcq, IBV_WC_RECV, 0));
	EXPECT(memcmp(c->memory + RECV_AT, expected, 8) == 0);
	say_imm(expect_wc(c->rcq, IBV_WC_RECV_RDMA_WITH_IMM, 1));
	EXPECT(memcmp(c->memory + 64, expected, 100) == 0);
}

static const struct {
	const char *name;
	void (*run)(struct client *c);
} OPERATIONS[] = {
	{"connect", op_connect}, {"write", op_write},	{"read", op_read}, {"flush", op_flush},
	{"atomic", op_atomic},	 {"send", op_send}, {"imm", op_imm},
};

static void run(struct client *c, struct rpma_peer *peer, char *argv[], size_t i)
{
	struct offer offer = new_offer(c->mr, false);
	uint8_t bytes[UINT8_MAX];
	struct rpma_conn_private_data pdata = {&offer, sizeof(offer)};
	struct rpma_conn_cfg *cfg = new_cfg();
	struct rpma_conn_req *req = NULL;
	bool plain = OPERATIONS[i].run == op_connect;

	if (plain) {
		fill(bytes, c->argument, 1);
		pdata = (struct rpma_conn_private_data){bytes, (uint8_t)c->argument};
	}
	TRY(rpma_conn_req_new(peer, argv[1], argv[2], cfg, &req));
	TRY(rpma_conn_cfg_delete(&cfg));
	TRY(rpma_conn_req_recv(req, c->mr, RECV_AT, 4096, op_context(0)));
	TRY(rpma_conn_req_connect(&req, pdata.len > 0 ? &pdata : NULL, &c->conn));
	if (next_event(c->conn) == RPMA_CONN_ESTABLISHED) {
		TRY(rpma_conn_get_cq(c->conn, &c->cq));
		TRY(rpma_conn_get_rcq(c->conn, &c->rcq));
		if (!plain)
			c->remote = take_offer(c->conn);
		OPERATIONS[i].run(c);
		TRY(rpma_conn_disconnect(c->conn));
		EXPECT(next_event(c->conn) == RPMA_CONN_CLOSED);
		TRY(rpma_mr_remote_delete(&c->remote));
	}
	TRY(rpma_conn_delete(&c->conn));
}

int main(int argc, char *argv[])
{
	struct client c = {.memory = new_memory()};
	struct rpma_peer *peer;

	EXPECT(argc >= 4);
	c.argument = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
	peer = new_peer(argv[1], RPMA_UTIL_IBV_CONTEXT_REMOTE);
	TRY(rpma_mr_reg(peer, c.memory, (size_t)2 * SHARED, USAGE, &c.mr));
	for (size_t i = 0; i < sizeof(OPERATIONS) / sizeof(OPERATIONS[0]); i++)
		if (strcmp(OPERATIONS[i].name, argv[3]) == 0)
			run(&c, peer, argv, i);
	TRY(rpma_mr_dereg(&c.mr));
	TRY(rpma_peer_delete(&peer));
	free(c.memory);
	SAY("done");
	return 0;
}
