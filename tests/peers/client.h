/*
 * The clients of librpma's examples: `peer ADDR PORT client PROTOCOL [ARGUMENT...]`. Bytes are given and
 * told in hexadecimal digits.
 *
 *   greet BYTES               (01) sends private data, tells those of the answer
 *   read                      (02) reads what is offered and tells it
 *   offer OFFSET SIZE BYTES   (03, 06) offers memory to be read: BYTES begin at OFFSET
 *   write BYTES               (04) writes, and reads 8 bytes after it
 *   flush BYTES               (05) writes and flushes
 *   log WORD...               (07) appends words to the log
 *   ping FIRST COUNT END      (08, 12, 08srq, 13) sends COUNT values, each the answer to the one
 *                             before, then the end marker. END: `leave` disconnects then, `stay` waits
 *                             for the server to do so, `lose` disconnects without the marker
 *   gpspm BYTES REQUEST       (09) writes, asks to persist, tells the answer
 *   gpspm-refused BYTES REQUEST  the same, if the server disconnects instead of answering
 *   send-imm DATA IMM [BYTES] (10) with DATA as private data
 *   write-imm BYTES IMM       (11)
 *
 * Whatever is told to the server must have arrived there before this side disconnects: the
 * completion is waited for.
 */
#ifndef CLIENT_H
#define CLIENT_H

#include "peers.h"


static struct rpma_conn *dial(struct side *s, void *data, size_t len)
{
	struct rpma_conn_private_data pdata = {data, (uint8_t)len};
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;

	TRY(rpma_conn_req_new(s->peer, s->addr, s->port, s->cfg, &req));
	TRY(rpma_conn_req_connect(&req, len > 0 ? &pdata : NULL, &conn));
	EXPECT(next_event(conn) == RPMA_CONN_ESTABLISHED);
	TRY(rpma_conn_get_cq(conn, &s->cq));
	TRY(rpma_conn_get_rcq(conn, &s->rcq));
	return conn;
}

static void client_greet(struct side *s)
{
	struct rpma_conn *conn = dial(s, s->memory, unhex(s->args[0], s->memory, UINT8_MAX));

	say_data(conn);
	be_left(conn);
}

static void read_all(struct side *s)
{
	struct rpma_conn *conn = dial(s, NULL, 0);
	size_t size = 0;

	reg(s, NULL, 0, 0);
	take_data(s, conn);
	TRY(rpma_mr_remote_get_size(s->remote, &size));
	EXPECT(size <= SHARED);
	TRY(rpma_read(conn, s->local, 0, s->remote, 0, size, RPMA_F_COMPLETION_ALWAYS,
		      op_context(1)));
	expect_wc(s->cq, IBV_WC_RDMA_READ, 1);
	say_hex("memory", s->memory, size);
	leave(conn);
}

static void client_offer(struct side *s)
{
	size_t offset = number(s->args[0]);
	uint8_t data[COMMON_DATA];

	unhex(s->args[2], s->memory + offset, SHARED - offset);
	reg(s, s->memory, number(s->args[1]), RPMA_MR_USAGE_READ_SRC);
	describe(s, data, offset, "none");
	be_left(dial(s, data, sizeof(data)));
}

/* Writes the text of the first argument where the server wants it. */
static size_t write_text(struct side *s, struct rpma_conn *conn)
{
	size_t offset;

	reg(s, NULL, 0, 0);
	unhex(s->args[0], s->memory, TEXT);
	offset = take_data(s, conn);
	TRY(rpma_write(conn, s->remote, offset, s->local, 0, TEXT, RPMA_F_COMPLETION_ON_ERROR,
		       op_context(2)));
	return offset;
}

static void write_and_read(struct side *s)
{
	struct rpma_conn *conn = dial(s, NULL, 0);

	write_text(s, conn);
	TRY(rpma_read(conn, s->local, RECV_AT, s->remote, 0, 8, RPMA_F_COMPLETION_ALWAYS,
		      op_context(1)));
	expect_wc(s->cq, IBV_WC_RDMA_READ, 1);
	leave(conn);
}

/* Waits for a flush; tells if it failed. */
static bool flushed(struct side *s)
{
	struct ibv_wc wc = next_wc(s->cq);

	if (wc.status != IBV_WC_SUCCESS) {
		SAY("failed %d", wc.status);
		return false;
	}
	EXPECT(wc.wr_id == 0xF01D);
	EXPECT(wc.opcode == IBV_WC_FLUSH);
	return true;
}

static enum rpma_flush_type flush_type(const struct side *s)
{
	int type = 0;

	TRY(rpma_mr_remote_get_flush_type(s->remote, &type));
	if (type & RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT)
		return RPMA_FLUSH_TYPE_PERSISTENT;
	return RPMA_FLUSH_TYPE_VISIBILITY;
}

static void write_and_flush(struct side *s)
{
	struct rpma_conn *conn = dial(s, NULL, 0);
	size_t offset = write_text(s, conn);

	/* Persistent, if the region allows that: the library refuses it unless the server said "on". */
	TRY(rpma_flush(conn, s->remote, offset, TEXT, flush_type(s), RPMA_F_COMPLETION_ALWAYS,
		       op_context(0xF01D)));
	if (flushed(s))
		SAY("flushed %d", flush_type(s));
	leave(conn);
}

/* Posts the four operations that append one word. */
static void append(struct side *s, struct rpma_conn *conn, const char *word, size_t at,
		   uint64_t *used)
{
	size_t len = strlen(word) + 1;

	EXPECT(len <= TEXT);
	memcpy(s->memory, word, len);
	TRY(rpma_write(conn, s->remote, *used, s->local, 0, len, RPMA_F_COMPLETION_ON_ERROR,
		       op_context(2)));
	TRY(rpma_flush(conn, s->remote, *used, len, flush_type(s), RPMA_F_COMPLETION_ON_ERROR,
		       op_context(3)));
	*used += len;
	TRY(rpma_atomic_write(conn, s->remote, at, (const char *)used, RPMA_F_COMPLETION_ON_ERROR,
			      op_context(4)));
	TRY(rpma_flush(conn, s->remote, at, sizeof(*used), flush_type(s), RPMA_F_COMPLETION_ALWAYS,
		       op_context(0xF01D)));
}

static void append_words(struct side *s)
{
	struct rpma_conn *conn = dial(s, NULL, 0);
	struct rpma_peer_cfg *pcfg = NULL;
	uint64_t used;
	size_t at;

	reg(s, NULL, 0, 0);
	at = take_data(s, conn);
	/* This client does not ask whether the server's writes are direct. */
	TRY(rpma_peer_cfg_new(&pcfg));
	TRY(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, true));
	TRY(rpma_conn_apply_remote_peer_cfg(conn, pcfg));
	TRY(rpma_peer_cfg_delete(&pcfg));

	TRY(rpma_read(conn, s->local, 0, s->remote, at, sizeof(used), RPMA_F_COMPLETION_ALWAYS,
		      op_context(1)));
	expect_wc(s->cq, IBV_WC_RDMA_READ, 1);
	memcpy(&used, s->memory, sizeof(used));
	SAY("used %" PRIu64, used);
	for (char **word = s->args; *word != NULL; word++) {
		append(s, conn, *word, at, &used);
		if (!flushed(s))
			break;
	}
	leave(conn);
}

static void client_ping(struct side *s)
{
	struct rpma_conn *conn = dial(s, NULL, 0);
	uint64_t value = number(s->args[0]);
	const char *how = s->args[2];

	reg(s, NULL, 0, 0);
	for (size_t i = number(s->args[1]); i > 0; i--) {
		TRY(rpma_recv(conn, s->local, RECV_AT, sizeof(value), op_context(0)));
		memcpy(s->memory + SEND_AT, &value, sizeof(value));
		say_hex("sent", s->memory + SEND_AT, sizeof(value));
		send_message(s, conn, sizeof(value));
		EXPECT(expect_wc(s->rcq, IBV_WC_RECV, 0).byte_len == sizeof(value));
		say_hex("received", s->memory + RECV_AT, sizeof(value));
		memcpy(&value, s->memory + RECV_AT, sizeof(value));
	}
	if (strcmp(how, "lose") != 0) {
		memset(s->memory + SEND_AT, 0xFF, sizeof(value));
		send_message(s, conn, sizeof(value));
	}
	if (strcmp(how, "stay") == 0)
		be_left(conn);
	else
		leave(conn);
}

/* Writes, and sends what is to be persisted. */
static struct rpma_conn *ask_to_persist(struct side *s)
{
	struct rpma_conn *conn = dial(s, NULL, 0);
	size_t len;

	write_text(s, conn);
	TRY(rpma_recv(conn, s->local, RECV_AT, MESSAGE, op_context(0)));
	len = unhex(s->args[1], s->memory + SEND_AT, MESSAGE);
	TRY(rpma_send(conn, s->local, SEND_AT, len, RPMA_F_COMPLETION_ALWAYS, op_context(1)));
	return conn;
}

static void client_gpspm(struct side *s)
{
	struct rpma_conn *conn = ask_to_persist(s);
	struct ibv_wc wc;

	expect_wc(s->cq, IBV_WC_SEND, 1);
	wc = expect_wc(s->rcq, IBV_WC_RECV, 0);
	say_hex("answer", s->memory + RECV_AT, wc.byte_len);
	leave(conn);
}

static void gpspm_refused(struct side *s)
{
	struct rpma_conn *conn = ask_to_persist(s);
	struct ibv_wc wc;

	EXPECT(next_event(conn) == RPMA_CONN_CLOSED);
	EXPECT(rpma_cq_get_wc(s->rcq, 1, &wc, NULL) == RPMA_E_NO_COMPLETION);
	TRY(rpma_conn_disconnect(conn));
	TRY(rpma_conn_delete(&conn));
}

static void client_send_imm(struct side *s)
{
	uint8_t data[UINT8_MAX];
	struct rpma_conn *conn = dial(s, data, unhex(s->args[0], data, sizeof(data)));
	bool text = s->args[2] != NULL;

	reg(s, NULL, 0, 0);
	if (text)
		unhex(s->args[2], s->memory, TEXT);
	TRY(rpma_send_with_imm(conn, text ? s->local : NULL, 0, text ? TEXT : 0,
			       RPMA_F_COMPLETION_ALWAYS, (uint32_t)number(s->args[1]),
			       op_context(1)));
	expect_wc(s->cq, IBV_WC_SEND, 1);
	leave(conn);
}

static void client_write_imm(struct side *s)
{
	struct rpma_conn *conn = dial(s, NULL, 0);
	size_t offset;

	reg(s, NULL, 0, 0);
	unhex(s->args[0], s->memory, TEXT);
	offset = take_data(s, conn);
	TRY(rpma_write_with_imm(conn, s->remote, offset, s->local, 0, TEXT,
				RPMA_F_COMPLETION_ALWAYS, (uint32_t)number(s->args[1]),
				op_context(1)));
	expect_wc(s->cq, IBV_WC_RDMA_WRITE, 1);
	leave(conn);
}

static const struct protocol CLIENTS[] = {
	{"greet", client_greet},
	{"read", read_all},
	{"offer", client_offer},
	{"write", write_and_read},
	{"flush", write_and_flush},
	{"log", append_words},
	{"ping", client_ping},
	{"gpspm", client_gpspm},
	{"gpspm-refused", gpspm_refused},
	{"send-imm", client_send_imm},
	{"write-imm", client_write_imm},
};

#endif
