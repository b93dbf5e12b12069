/* Load for a proxy: `_proxy_load PORT CONNECTIONS SECONDS MOST < REQUEST` prints what it saw as JSON. Built and
   started by `bench.proxy`. Every connection sends the request, reads the whole answer, and sends it again; "########"
   in it becomes the number of the call, so that no two requests are the same. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 20, AT_ONCE = 256, PATIENCE = 10 };

typedef struct {
    int number;
    char *buffer;
    int filled;
    double sent, first;
} Client;

static char request[ROOM];
static char *number_in_request;
static int size;
static double until;
static long most, count, wrong, lost, events, started;
static double *times, *firsts;
static char last[200];

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int by_size(const void *one, const void *other) {
    double first = *(const double *)one, second = *(const double *)other;
    return (first > second) - (first < second);
}

/* Whether the client goes on. */
static int ask(Client *it) {
    it->filled = 0;
    it->sent = now();
    if (it->sent > until || started >= most) return 0;
    started++;
    if (number_in_request) {
        char digits[9];
        snprintf(digits, sizeof digits, "%08ld", started % 100000000);
        memcpy(number_in_request, digits, 8);
    }
    if (send(it->number, request, size, MSG_NOSIGNAL) != size) fail("send");
    return 1;
}

static int is_whole(const Client *it) {
    if (it->filled > 5 && !memcmp(it->buffer + it->filled - 5, "0\r\n\r\n", 5)) {
        char *chunked = strcasestr(it->buffer, "\r\ntransfer-encoding: chunked");
        if (chunked && chunked < strstr(it->buffer, "\r\n\r\n")) return 1;
    }
    char *end = strstr(it->buffer, "\r\n\r\n"), *length = strcasestr(it->buffer, "\r\ncontent-length:");
    return end && length && length < end && it->buffer + it->filled - (end + 4) >= atoi(length + 17);
}

static void note(Client *it) {
    firsts[count] = it->first;
    times[count++] = now() - it->sent;
    for (char *at = it->buffer; (at = strstr(at, "data: {")); at += 7) events++;
    if (strncmp(it->buffer, "HTTP/1.1 200", 12)) {
        wrong++;
        snprintf(last, sizeof last, "%s", it->buffer + (it->filled > 150 ? it->filled - 150 : 0));
        for (char *at = last; *at; at++)
            if (*at < ' ' || *at == '"' || *at == '\\') *at = ' ';
    }
}

/* Whether the client goes on. */
static int hear(Client *it) {
    ssize_t got = recv(it->number, it->buffer + it->filled, ROOM - 1 - it->filled, 0);
    if (got <= 0) return lost++, 0;
    if (!it->filled) it->first = now() - it->sent;
    it->filled += got;
    it->buffer[it->filled] = 0;
    if (!is_whole(it)) return 1;
    note(it);
    return ask(it);
}

int main(int given, char **value) {
    if (given != 5) return fprintf(stderr, "usage: _proxy_load PORT CONNECTIONS SECONDS MOST\n"), 2;
    int clients = atoi(value[2]), left = 0, yes = 1, watch = epoll_create1(0);
    double seconds = atof(value[3]);
    most = atol(value[4]);
    size = fread(request, 1, ROOM - 1, stdin);
    number_in_request = strstr(request, "########");
    times = calloc(most + clients, sizeof(double));
    firsts = calloc(most + clients, sizeof(double));
    Client *all = calloc(clients, sizeof(Client));
    if (!times || !firsts || !all) fail("memory");
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(atoi(value[1]))};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int at = 0; at < clients; at++) {
        Client *it = &all[at];
        it->number = socket(AF_INET, SOCK_STREAM, 0);
        it->buffer = malloc(ROOM);
        if (!it->buffer || connect(it->number, (struct sockaddr *)&place, sizeof place)) fail("connect");
        setsockopt(it->number, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = it};
        epoll_ctl(watch, EPOLL_CTL_ADD, it->number, &event);
    }
    double began = now();
    until = began + seconds;
    for (int at = 0; at < clients; at++) left += ask(&all[at]);
    while (left > 0) {
        struct epoll_event seen[AT_ONCE];
        int ready = epoll_wait(watch, seen, AT_ONCE, 1000);
        for (int at = 0; at < ready; at++) {
            Client *it = seen[at].data.ptr;
            if (hear(it)) continue;
            left--;
            epoll_ctl(watch, EPOLL_CTL_DEL, it->number, NULL);
        }
        if (now() > until + PATIENCE) return fprintf(stderr, "%d clients still wait\n", left), 1;
    }
    double took = now() - began;
    qsort(times, count, sizeof(double), by_size);
    qsort(firsts, count, sizeof(double), by_size);
    printf("{\"count\": %ld, \"seconds\": %f, \"events\": %ld, \"wrong\": %ld, \"lost\": %ld, \"last\": \"%s\"", count,
           took, events, wrong, lost, last);
    if (count)
        printf(", \"p50\": %f, \"p99\": %f, \"first\": %f", times[count / 2] * 1e3,
               times[(long)(count * 0.99)] * 1e3, firsts[count / 2] * 1e3);
    printf("}\n");
    return 0;
}
