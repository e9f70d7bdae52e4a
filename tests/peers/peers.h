/*
 * What the client and the server share: the messages of librpma's examples, byte by byte.
 */
#ifndef PEERS_H
#define PEERS_H

#include "../programs/interop/interop.h"

/* `struct common_data` of librpma's examples. */
#define COMMON_DATA 28
/* What the examples write and send. */
#define TEXT 1024
/* The longest message of example 09. */
#define MESSAGE 512

struct side {
	const char *addr, *port, *protocol;
	/* The protocol's; behind the last one comes NULL. */
	char **args;
	struct rpma_peer *peer;
	/* Two parts, as in the other programs; only the first is offered. */
	uint8_t *memory;
	struct rpma_mr_local *local, *shared;
	struct rpma_mr_remote *remote;
	struct rpma_ep *ep;
	struct rpma_conn_cfg *cfg;
	struct rpma_cq *cq, *rcq;
};

static inline size_t number(const char *text)
{
	EXPECT(text != NULL);
	return strtoul(text, NULL, 10);
}

/* Decodes up to `max` bytes. */
static inline size_t unhex(const char *text, uint8_t *bytes, size_t max)
{
	size_t len;

	EXPECT(text != NULL);
	len = strlen(text) / 2;
	EXPECT(len <= max);
	for (size_t i = 0; i < len; i++)
		EXPECT(sscanf(text + 2 * i, "%2hhx", &bytes[i]) == 1);
	return len;
}

/* Registers memory for what this side does, and the first `size` bytes of `base` for the other. */
static inline void reg(struct side *s, uint8_t *base, size_t size, int usage)
{
	TRY(rpma_mr_reg(s->peer, s->memory, (size_t)2 * SHARED, USAGE, &s->local));
	if (size > 0)
		TRY(rpma_mr_reg(s->peer, base, size, usage, &s->shared));
}

/* Describes the memory that is offered. `direct_write`: none, or what the platform is said to do. */
static inline void describe(const struct side *s, uint8_t *data, size_t offset,
			    const char *direct_write)
{
	bool with_pcfg = strcmp(direct_write, "none") != 0;
	struct offer offer = new_offer(s->shared, strcmp(direct_write, "on") == 0);

	memset(data, 0, COMMON_DATA);
	data[0] = (uint8_t)offset;
	data[1] = (uint8_t)(offset >> 8);
	data[2] = MR_DESC;
	data[3] = with_pcfg;
	memcpy(data + 4, &offer, with_pcfg ? MR_DESC + 1 : MR_DESC);
}

/* Tells the other side's private data. */
static inline const uint8_t *say_data(struct rpma_conn *conn)
{
	struct rpma_conn_private_data pdata;

	TRY(rpma_conn_get_private_data(conn, &pdata));
	say_hex("data", pdata.ptr, pdata.len);
	return pdata.ptr;
}

/* Takes the description of the other side's memory, and returns where the data begins in it. */
static inline size_t take_data(struct side *s, struct rpma_conn *conn)
{
	const uint8_t *data = say_data(conn);

	EXPECT(data != NULL && data[2] == MR_DESC);
	TRY(rpma_mr_remote_from_descriptor(data + 4, MR_DESC, &s->remote));
	if (data[3] > 0) {
		struct rpma_peer_cfg *pcfg = NULL;

		TRY(rpma_peer_cfg_from_descriptor(data + 4 + MR_DESC, data[3], &pcfg));
		TRY(rpma_conn_apply_remote_peer_cfg(conn, pcfg));
		TRY(rpma_peer_cfg_delete(&pcfg));
	}
	return data[0] | (size_t)data[1] << 8;
}

/* Ends the connection. */
static inline void leave(struct rpma_conn *conn)
{
	TRY(rpma_conn_disconnect(conn));
	EXPECT(next_event(conn) == RPMA_CONN_CLOSED);
	TRY(rpma_conn_delete(&conn));
}

/* Waits until the other side ends the connection. */
static inline void be_left(struct rpma_conn *conn)
{
	EXPECT(next_event(conn) == RPMA_CONN_CLOSED);
	TRY(rpma_conn_disconnect(conn));
	TRY(rpma_conn_delete(&conn));
}

/* Posts a message and waits until the other side has it. */
static inline void send_message(struct side *s, struct rpma_conn *conn, size_t len)
{
	TRY(rpma_send(conn, s->local, SEND_AT, len, RPMA_F_COMPLETION_ALWAYS, op_context(1)));
	expect_wc(s->cq, IBV_WC_SEND, 1);
}

struct protocol {
	const char *name;
	void (*run)(struct side *s);
};

/* Runs this side's protocol. */
static inline void run(const struct protocol *protocols, size_t count, struct side *s)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(protocols[i].name, s->protocol) == 0) {
			protocols[i].run(s);
			TRY(rpma_mr_remote_delete(&s->remote));
			TRY(rpma_mr_dereg(&s->shared));
			TRY(rpma_mr_dereg(&s->local));
			return;
		}
	fail(__LINE__, s->protocol, "no such protocol");
}

static inline struct side new_side(char *argv[], enum rpma_util_ibv_context_type type)
{
	return (struct side){
		.addr = argv[1],
		.port = argv[2],
		.protocol = argv[4],
		.args = argv + 5,
		.peer = new_peer(argv[1], type),
		.memory = new_memory(),
		.cfg = new_cfg(),
	};
}

#endif
