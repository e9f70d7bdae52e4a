/*
 * `descriptors ADDR HEX...`: decodes the descriptors of regions, and tells those of its own, one for
 * every usage that ordinary memory can have. Connects to nobody.
 */
#include "interop.h"

static void decode(const char *hex)
{
	uint8_t bytes[MR_DESC] = {0};
	size_t len = strlen(hex) / 2, size = 0;
	struct rpma_mr_remote *remote = NULL;
	int flush_type = 0;

	EXPECT(len <= sizeof(bytes));
	for (size_t i = 0; i < len; i++)
		EXPECT(sscanf(hex + 2 * i, "%2hhx", &bytes[i]) == 1);
	TRY(rpma_mr_remote_from_descriptor(bytes, len, &remote));
	TRY(rpma_mr_remote_get_size(remote, &size));
	TRY(rpma_mr_remote_get_flush_type(remote, &flush_type));
	TRY(rpma_mr_remote_delete(&remote));
	SAY("remote %zu %d", size, flush_type);
}

static void encode(struct rpma_peer *peer, uint8_t *memory, int usage)
{
	struct rpma_mr_local *mr = NULL;
	struct offer offer;
	size_t size = 0;
	void *ptr = NULL;

	TRY(rpma_mr_reg(peer, memory + usage, SHARED - (size_t)usage, usage, &mr));
	TRY(rpma_mr_get_ptr(mr, &ptr));
	TRY(rpma_mr_get_size(mr, &size));
	offer = new_offer(mr, usage % 2);
	SAY("mr %d %" PRIuPTR " %zu", usage, (uintptr_t)ptr, size);
	say_hex("offer", &offer, sizeof(offer));
	TRY(rpma_mr_dereg(&mr));
}

int main(int argc, char *argv[])
{
	struct rpma_peer *peer;
	uint8_t *memory = new_memory();

	EXPECT(argc >= 2);
	peer = new_peer(argv[1], RPMA_UTIL_IBV_CONTEXT_LOCAL);
	for (int i = 2; i < argc; i++)
		decode(argv[i]);
	for (int usage = 1; usage < 0x100; usage++)
		if (!(usage & RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT))
			encode(peer, memory, usage);
	TRY(rpma_peer_delete(&peer));
	free(memory);
	SAY("done");
	return 0;
}
