/* wan: a switch in user space that gives every host a link with a rate and a delay, for kernels
 * without netem.  Each host gets one TAP device named eth0.  Large segments stay whole (virtio-net
 * headers with TSO), so that a link of 1 Gbit/s costs a few percent of a core.
 *
 *   cc -O2 -o wan wan.c
 *   wan RATE_BYTES_PER_S DELAY_US QUEUE_BYTES NETNS_PATH...
 *
 * Prints "up" when all devices stand; whoever started it then sets their addresses: host i (from 0)
 * is MAC 02:00:00:00:00:(i+1), and there is no broadcast, so neighbours have to be told.
 *
 * A packet leaves at its sender's rate, waits for the delay, and arrives at its receiver's rate;
 * what exceeds QUEUE_BYTES on the way to a receiver is dropped. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_HOSTS = 64,
    VNET_HEADER = 10,  /* bytes of virtio-net header before each packet */
    ETH_HEADER = 14,
    ETH_OVERHEAD = 38, /* header, checksum, preamble and gap: what a packet costs on a wire */
    BURST = 8,         /* packets taken from one host before the next has its turn */
    MAX_PACKET = 70000,
};
static const long SECOND_NS = 1000000000L;
/* How far a host may be ahead of its link, as with a network card's own queue.  What it sends beyond
 * waits in its kernel, which keeps connections fair: without that limit acknowledgements would stand
 * behind megabytes of data, and hosts that send and receive at once would lose rate to it. */
static const long CARD_NS = 500000L;

typedef struct packet {
    struct packet *next;
    long due_ns; /* when it may be delivered */
    int length;
    unsigned char bytes[];
} packet;

/* One per host. */
typedef struct {
    int tap;
    packet *head, *tail;    /* under way to it, in order of arrival */
    long queued;            /* bytes of them */
    long send_free_ns;      /* when its link has sent all it was given */
    long receive_free_ns;   /* when its link has received all that is under way to it */
} link_end;

static link_end hosts[MAX_HOSTS];
static int host_count;

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND_NS + t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int open_tap(const char *netns) {
    int ns = open(netns, O_RDONLY);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) fail(netns);
    close(ns);
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (tap < 0) fail("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    strcpy(request.ifr_name, "eth0");
    int header = VNET_HEADER;
    if (ioctl(tap, TUNSETIFF, &request) || ioctl(tap, TUNSETVNETHDRSZ, &header)) fail("TAP eth0");
    if (ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)) perror("offload");
    return tap;
}

/* Hand over what has arrived by now; stops where the receiver's device is full. */
static void deliver(link_end *to, long time_ns) {
    while (to->head && to->head->due_ns <= time_ns) {
        packet *p = to->head;
        if (write(to->tap, p->bytes, p->length) < 0 && errno == EAGAIN) return;
        to->head = p->next;
        if (!to->head) to->tail = NULL;
        to->queued -= p->length;
        free(p);
    }
}

static long later(long a, long b) { return a > b ? a : b; }

/* Take what a host has sent and reckon when each packet arrives. */
static void accept_from(link_end *from, double rate, long delay_ns, long limit) {
    static unsigned char buffer[MAX_PACKET];
    for (int i = 0; i < BURST && from->send_free_ns - now_ns() < CARD_NS; i++) {
        int length = read(from->tap, buffer, sizeof buffer);
        if (length <= VNET_HEADER + ETH_HEADER) return;
        const unsigned char *mac = buffer + VNET_HEADER;
        int index = mac[5] - 1;
        if (mac[0] != 2 || index < 0 || index >= host_count) continue;
        link_end *to = &hosts[index];
        long wire_ns = (long)((length - VNET_HEADER + ETH_OVERHEAD) / rate * 1e9);
        from->send_free_ns = later(from->send_free_ns, now_ns()) + wire_ns;
        if (to == from || to->queued + length > limit) continue;

        packet *p = malloc(sizeof *p + length);
        if (!p) fail("malloc");
        long arrival_ns = later(from->send_free_ns + delay_ns, to->receive_free_ns + wire_ns);
        to->receive_free_ns = arrival_ns;
        memcpy(p->bytes, buffer, length);
        p->length = length;
        p->due_ns = arrival_ns;
        p->next = NULL;
        if (to->tail) to->tail->next = p;
        else to->head = p;
        to->tail = p;
        to->queued += length;
    }
}

int main(int argc, char **argv) {
    host_count = argc - 4;
    if (host_count < 2 || host_count > MAX_HOSTS) {
        fprintf(stderr, "usage: wan RATE_BYTES_PER_S DELAY_US QUEUE_BYTES NETNS_PATH NETNS_PATH...\n");
        return 2;
    }
    double rate = atof(argv[1]);
    long delay_ns = (long)(atof(argv[2]) * 1000), limit = atol(argv[3]);
    /* Packets are due to the microsecond: no slack in timers, and not behind computing ranks. */
    prctl(PR_SET_TIMERSLACK, 1);
    struct sched_param priority = {.sched_priority = 10};
    if (sched_setscheduler(0, SCHED_FIFO, &priority)) perror("real-time priority");
    for (int i = 0; i < host_count; i++) hosts[i].tap = open_tap(argv[4 + i]);
    puts("up");
    fflush(stdout);

    struct pollfd waiting[MAX_HOSTS];
    for (;;) {
        long time_ns = now_ns(), next_ns = time_ns + SECOND_NS;
        for (int i = 0; i < host_count; i++) {
            deliver(&hosts[i], time_ns);
            if (hosts[i].head && hosts[i].head->due_ns < next_ns) next_ns = hosts[i].head->due_ns;
            long ready_ns = hosts[i].send_free_ns - CARD_NS;
            int is_ready = ready_ns < time_ns;
            if (!is_ready && ready_ns < next_ns) next_ns = ready_ns;
            waiting[i] = (struct pollfd){.fd = hosts[i].tap, .events = is_ready ? POLLIN : 0};
        }
        long pause_ns = later(0, next_ns - now_ns());
        struct timespec timeout = {pause_ns / SECOND_NS, pause_ns % SECOND_NS};
        if (ppoll(waiting, host_count, &timeout, NULL) > 0)
            for (int i = 0; i < host_count; i++)
                if (waiting[i].revents & POLLIN) accept_from(&hosts[i], rate, delay_ns, limit);
    }
}
