/* Bytes from one socket to another and nothing else: `_proxy_relay UPSTREAM PORT`, built and started by `bench.proxy`.
   What is left is the kernel's share, and how much a wake-up costs on this machine. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 1 << 16, AT_ONCE = 256, MOST = 1 << 16 };

static int other[MOST]; /* the other end of each connection, 0 for none */
static int watch;

static struct sockaddr_in at_port(const char *port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return place;
}

static void hear(int number) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = number};
    int yes = 1;
    setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    epoll_ctl(watch, EPOLL_CTL_ADD, number, &event);
}

static void join(int door, const struct sockaddr_in *upstream) {
    int client = accept(door, NULL, NULL), model = socket(AF_INET, SOCK_STREAM, 0);
    if (client < 0 || model < 0 || client >= MOST || model >= MOST) exit(1);
    if (connect(model, (const struct sockaddr *)upstream, sizeof *upstream)) exit(1);
    other[client] = model;
    other[model] = client;
    hear(client);
    hear(model);
}

static void pass_on(int number) {
    static char buffer[ROOM];
    int end = other[number];
    if (!end) return; /* closed with its other end, in this round */
    ssize_t got = recv(number, buffer, ROOM, 0);
    if (got > 0 && send(end, buffer, got, MSG_NOSIGNAL) == got) return;
    other[number] = other[end] = 0;
    close(number);
    close(end);
}

int main(int count, char **given) {
    if (count != 3) return fprintf(stderr, "usage: _proxy_relay UPSTREAM PORT\n"), 2;
    struct sockaddr_in upstream = at_port(given[1]), here = at_port(given[2]);
    int yes = 1, door = socket(AF_INET, SOCK_STREAM, 0);
    watch = epoll_create1(0);
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(door, (struct sockaddr *)&here, sizeof here) || listen(door, 1024)) return perror("listen"), 1;
    hear(door);
    for (;;) {
        struct epoll_event seen[AT_ONCE];
        int ready = epoll_wait(watch, seen, AT_ONCE, -1);
        for (int at = 0; at < ready; at++) {
            if (seen[at].data.fd == door)
                join(door, &upstream);
            else
                pass_on(seen[at].data.fd);
        }
    }
}
