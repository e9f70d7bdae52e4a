/*
 * One side of librpma's examples: a client (client.h) or a server (server.h). They are one program,
 * because compiling takes longer than all they do.
 */
#include "client.h"
#include "server.h"

#define COUNT(protocols) (sizeof(protocols) / sizeof(protocols[0]))

int main(int argc, char *argv[])
{
	struct side s;

	EXPECT(argc >= 5);
	if (strcmp(argv[3], "client") == 0) {
		s = new_side(argv, RPMA_UTIL_IBV_CONTEXT_REMOTE);
		run(CLIENTS, COUNT(CLIENTS), &s);
	} else {
		s = new_side(argv, RPMA_UTIL_IBV_CONTEXT_LOCAL);
		TRY(rpma_ep_listen(s.peer, s.addr, s.port, &s.ep));
		SAY("listening");
		run(SERVERS, COUNT(SERVERS), &s);
		TRY(rpma_ep_shutdown(&s.ep));
	}
	TRY(rpma_conn_cfg_delete(&s.cfg));
	TRY(rpma_peer_delete(&s.peer));
	free(s.memory);
	SAY("done");
	return 0;
}
