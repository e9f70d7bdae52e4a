/*
 * Makes verbs fail. It is loaded into a test program before libibverbs and librdmacm (LD_PRELOAD), stands
 * in the place of their functions, and passes each call on, until the test arms one of them.
 *
 * Exported functions are interposed: this library has no symbol versions, so that its definitions serve
 * references of every version. What verbs.h has as `static inline` goes through pointers, in the device's
 * context and in extended queue pairs, which are replaced when the test program first gets hold of them.
 * Calls that librdmacm makes for itself are passed on: a test is about those of the library under test.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* In verbs.h it is a macro as well. */
#undef ibv_reg_mr

enum call {
	CREATE_COMP_CHANNEL,
	DESTROY_COMP_CHANNEL,
	CREATE_CQ,
	DESTROY_CQ,
	GET_CQ_EVENT,
	REQ_NOTIFY_CQ,
	POLL_CQ,
	CREATE_SRQ,
	DESTROY_SRQ,
	REG_MR,
	DEREG_MR,
	MODIFY_QP,
	QUERY_QP,
	DESTROY_QP,
	POST_SEND,
	POST_RECV,
	POST_SRQ_RECV,
	WR_COMPLETE,
	GET_CM_EVENT,
	DESTROY_ID,
	INIT_QP_ATTR,
	ACCEPT,
	DISCONNECT,
	CALLS
};

static const char *const names[CALLS] = {
	"ibv_create_comp_channel",
	"ibv_destroy_comp_channel",
	"ibv_create_cq",
	"ibv_destroy_cq",
	"ibv_get_cq_event",
	"ibv_req_notify_cq",
	"ibv_poll_cq",
	"ibv_create_srq",
	"ibv_destroy_srq",
	"ibv_reg_mr",
	"ibv_dereg_mr",
	"ibv_modify_qp",
	"ibv_query_qp",
	"ibv_destroy_qp",
	"ibv_post_send",
	"ibv_post_recv",
	"ibv_post_srq_recv",
	"ibv_wr_complete",
	"rdma_get_cm_event",
	"rdma_destroy_id",
	"rdma_init_qp_attr",
	"rdma_accept",
	"rdma_disconnect",
};

/* How a call fails. */
enum how {
	/* Nothing has happened. A call that posts says which request it refused. */
	REFUSED,
	/* Nothing is there that says so: it has happened, as if the kernel had failed at the very end. */
	DONE,
	/* Of a chain, all but the last request is taken, and that one refused. */
	LAST_REFUSED,
	/* The same, and what is returned is 0, as with siw. */
	LAST_DROPPED,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* How many more calls it takes until one fails; 0: none does. */
static unsigned int left[CALLS];
static int errors[CALLS];
static enum how hows[CALLS];

/* For how long this thread stops in the middle of a post. */
static _Thread_local long pause_us;

/* The nth call of `name` from now on fails. 0 takes it back, and returns whether it is still to come; -1: no such name. */
int failing_arm(const char *name, unsigned int nth, int error, int how)
{
	for (int call = 0; call < CALLS; call++) {
		if (strcmp(names[call], name) != 0)
			continue;
		pthread_mutex_lock(&lock);
		int pending = left[call] != 0;
		left[call] = nth;
		errors[call] = error;
		hows[call] = how;
		pthread_mutex_unlock(&lock);
		return pending;
	}
	return -1;
}

void failing_pause(long us)
{
	pause_us = us;
}

static bool is_librdmacm(void *address)
{
	Dl_info info;
	return dladdr(address, &info) != 0 && strstr(info.dli_fname, "librdmacm") != NULL;
}

/* The errno with which this call fails; 0 if it does not. */
static int failure(enum call call, void *caller, enum how *how)
{
	int error = 0;
	pthread_mutex_lock(&lock);
	if (left[call] != 0 && !is_librdmacm(caller) && --left[call] == 0) {
		error = errors[call];
		*how = hows[call];
	}
	pthread_mutex_unlock(&lock);
	return error;
}

#define FAILURE(call, how) failure(call, __builtin_return_address(0), how)

/* The function that would have been called. */
static void *next(const char *name)
{
	void *function = dlsym(RTLD_NEXT, name);
	if (function == NULL) {
		fprintf(stderr, "failing.c: %s\n", dlerror());
		abort();
	}
	return function;
}

#define NEXT(name) (__extension__(__typeof__(&(name)))next(#name))

static void stop_for_a_moment(void)
{
	struct timespec moment = { .tv_sec = 0, .tv_nsec = pause_us * 1000 };
	if (pause_us != 0)
		nanosleep(&moment, NULL);
}

/* The device's own functions, of the one provider that a test uses. */
static struct ibv_context_ops device;
static int (*device_wr_complete)(struct ibv_qp_ex *);

static int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	enum how how;
	/* It says no more than that. */
	return FAILURE(POLL_CQ, &how) != 0 ? -1 : device.poll_cq(cq, entries, wc);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	enum how how;
	int error = FAILURE(REQ_NOTIFY_CQ, &how);
	return error != 0 ? error : device.req_notify_cq(cq, solicited_only);
}

/* Takes the last request from a chain. */
#define CUT_OFF_LAST(wr, last)                                                                     \
	do {                                                                                       \
		__typeof__(wr) before = wr;                                                        \
		while (before->next != NULL && before->next->next != NULL)                         \
			before = before->next;                                                     \
		last = before->next;                                                               \
		before->next = NULL;                                                               \
	} while (0)

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	enum how how = DONE;
	int error = FAILURE(POST_SEND, &how);
	if (how == REFUSED) {
		*bad = wr;
		return error;
	}
	stop_for_a_moment();
	struct ibv_send_wr *last = NULL;
	if (how == LAST_REFUSED || how == LAST_DROPPED)
		CUT_OFF_LAST(wr, last);
	int ret = device.post_send(qp, wr, bad);
	if (ret == 0 && last != NULL)
		*bad = last;
	stop_for_a_moment();
	return ret != 0 || how == LAST_DROPPED ? ret : error;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	enum how how = DONE;
	int error = FAILURE(POST_RECV, &how);
	if (how == REFUSED) {
		*bad = wr;
		return error;
	}
	struct ibv_recv_wr *last = NULL;
	if (how == LAST_REFUSED || how == LAST_DROPPED)
		CUT_OFF_LAST(wr, last);
	int ret = device.post_recv(qp, wr, bad);
	if (ret == 0 && last != NULL)
		*bad = last;
	return ret != 0 || how == LAST_DROPPED ? ret : error;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	enum how how = DONE;
	int error = FAILURE(POST_SRQ_RECV, &how);
	if (how == REFUSED) {
		*bad = wr;
		return error;
	}
	struct ibv_recv_wr *last = NULL;
	if (how == LAST_REFUSED || how == LAST_DROPPED)
		CUT_OFF_LAST(wr, last);
	int ret = device.post_srq_recv(srq, wr, bad);
	if (ret == 0 && last != NULL)
		*bad = last;
	return ret != 0 || how == LAST_DROPPED ? ret : error;
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	enum how how = DONE;
	int error = FAILURE(WR_COMPLETE, &how);
	if (how == REFUSED) {
		ibv_wr_abort(qp);
		return error;
	}
	int ret = device_wr_complete(qp);
	return ret != 0 || how == LAST_DROPPED ? ret : error;
}

/* Before it can have queues. */
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_context_ops *ops = &context->ops;
	pthread_mutex_lock(&lock);
	if (ops->poll_cq != poll_cq) {
		if (device.poll_cq != NULL && device.poll_cq != ops->poll_cq) {
			fprintf(stderr, "failing.c: devices of two providers\n");
			abort();
		}
		device = *ops;
		ops->poll_cq = poll_cq;
		ops->req_notify_cq = req_notify_cq;
		ops->post_send = post_send;
		ops->post_recv = post_recv;
		ops->post_srq_recv = post_srq_recv;
	}
	pthread_mutex_unlock(&lock);
	return NEXT(ibv_alloc_pd)(context);
}

/* Before the first post. */
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct ibv_qp_ex *extended = NEXT(ibv_qp_to_qp_ex)(qp);
	pthread_mutex_lock(&lock);
	if (extended != NULL && extended->wr_complete != wr_complete) {
		device_wr_complete = extended->wr_complete;
		extended->wr_complete = wr_complete;
	}
	pthread_mutex_unlock(&lock);
	return extended;
}

/* For functions that return NULL, or −1, with the reason in errno. */
#define FAIL_BY_ERRNO(call, value)                                                                 \
	do {                                                                                       \
		enum how fail_how;                                                                 \
		int fail_error = FAILURE(call, &fail_how);                                         \
		if (fail_error != 0) {                                                             \
			errno = fail_error;                                                        \
			return value;                                                              \
		}                                                                                  \
	} while (0)

/* For functions that return the errno. */
#define FAIL_BY_VALUE(call)                                                                        \
	do {                                                                                       \
		enum how fail_how;                                                                 \
		int fail_error = FAILURE(call, &fail_how);                                         \
		if (fail_error != 0)                                                               \
			return fail_error;                                                         \
	} while (0)

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	FAIL_BY_ERRNO(CREATE_COMP_CHANNEL, NULL);
	return NEXT(ibv_create_comp_channel)(context);
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	FAIL_BY_VALUE(DESTROY_COMP_CHANNEL);
	return NEXT(ibv_destroy_comp_channel)(channel);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	FAIL_BY_ERRNO(CREATE_CQ, NULL);
	return NEXT(ibv_create_cq)(context, entries, cq_context, channel, vector);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	FAIL_BY_VALUE(DESTROY_CQ);
	return NEXT(ibv_destroy_cq)(cq);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	FAIL_BY_ERRNO(GET_CQ_EVENT, -1);
	return NEXT(ibv_get_cq_event)(channel, cq, cq_context);
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	FAIL_BY_ERRNO(CREATE_SRQ, NULL);
	return NEXT(ibv_create_srq)(pd, attr);
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	FAIL_BY_VALUE(DESTROY_SRQ);
	return NEXT(ibv_destroy_srq)(srq);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	FAIL_BY_ERRNO(REG_MR, NULL);
	return NEXT(ibv_reg_mr)(pd, addr, length, access);
}

/* What ibv_reg_mr of verbs.h calls for some access flags. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				unsigned int access)
{
	FAIL_BY_ERRNO(REG_MR, NULL);
	return NEXT(ibv_reg_mr_iova2)(pd, addr, length, iova, access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	FAIL_BY_VALUE(DEREG_MR);
	return NEXT(ibv_dereg_mr)(mr);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
{
	FAIL_BY_VALUE(MODIFY_QP);
	return NEXT(ibv_modify_qp)(qp, attr, attr_mask);
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
		 struct ibv_qp_init_attr *init_attr)
{
	FAIL_BY_VALUE(QUERY_QP);
	return NEXT(ibv_query_qp)(qp, attr, attr_mask, init_attr);
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	FAIL_BY_VALUE(DESTROY_QP);
	return NEXT(ibv_destroy_qp)(qp);
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	FAIL_BY_ERRNO(GET_CM_EVENT, -1);
	return NEXT(rdma_get_cm_event)(channel, event);
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
	FAIL_BY_ERRNO(DESTROY_ID, -1);
	return NEXT(rdma_destroy_id)(id);
}

int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *attr_mask)
{
	FAIL_BY_ERRNO(INIT_QP_ATTR, -1);
	return NEXT(rdma_init_qp_attr)(id, attr, attr_mask);
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	enum how how = DONE;
	int error = FAILURE(ACCEPT, &how);
	int ret = how == REFUSED ? -1 : NEXT(rdma_accept)(id, param);
	if (error == 0 || (how != REFUSED && ret != 0))
		return ret;
	errno = error;
	return -1;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	FAIL_BY_ERRNO(DISCONNECT, -1);
	return NEXT(rdma_disconnect)(id);
}
