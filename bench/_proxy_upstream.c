/* A model that answers at once: `_proxy_upstream PORT FOLDER`, built and started by `bench.proxy`.

   FOLDER has the answers: plain.whole, shaped.whole, plain.stream and shaped.stream, each a row of pieces with four
   bytes of length before them. A body that names "response_format" gets the shaped one; a stream is written with one
   send per piece; a path with "/paced/" waits PACE between the pieces. "########" in a piece becomes the number of the
   answer, so that no two answers are the same. In C, and alone on its core with the load, so
   that it neither limits nor disturbs what is measured. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PACE = 5000000, CONNECTIONS = 4096, ROOM = 1 << 18, AT_ONCE = 256 };

typedef struct {
    char *data;
    int length;
    char *number; /* where the number of the answer goes, or NULL */
} Piece;

typedef struct {
    Piece *pieces;
    int count;
} Answer;

typedef struct {
    char buffer[ROOM];
    int filled;
    const Answer *answer; /* what is being paced, from `next` on, due at `due` */
    int next;
    long long due;
} Connection;

static Answer answers[2][2]; /* [shaped][streamed] */
static Connection *connections[CONNECTIONS];
static long answered;
static int paced; /* how many connections have a piece that is due */

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static Answer read_answer(const char *folder, const char *name) {
    char path[4096];
    Answer answer = {NULL, 0};
    unsigned char size[4];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    while (fread(size, 1, 4, file) == 4) {
        int length = size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3];
        Piece piece = {malloc(length), length, NULL};
        if (!piece.data || fread(piece.data, 1, length, file) != (size_t)length) fail(path);
        piece.number = memmem(piece.data, length, "########", 8);
        answer.pieces = realloc(answer.pieces, (answer.count + 1) * sizeof(Piece));
        if (!answer.pieces) fail("memory");
        answer.pieces[answer.count++] = piece;
    }
    fclose(file);
    return answer;
}

static void drop(int number) {
    if (connections[number]->answer) paced--;
    free(connections[number]);
    connections[number] = NULL;
    close(number);
}

/* Whoever reads so slowly that a whole answer does not fit into the socket is no reader for a benchmark. */
static int put(int number, const Piece *piece) {
    if (piece->number) {
        char digits[9];
        snprintf(digits, sizeof digits, "%08ld", ++answered % 100000000);
        memcpy(piece->number, digits, 8);
    }
    if (send(number, piece->data, piece->length, MSG_NOSIGNAL) == piece->length) return 1;
    drop(number);
    return 0;
}

static void go_on(int number) {
    Connection *it = connections[number];
    if (!put(number, &it->answer->pieces[it->next])) return;
    it->due += PACE;
    if (++it->next == it->answer->count) {
        it->answer = NULL;
        paced--;
    }
}

static void reply(int number, const char *head, const char *body) {
    Connection *it = connections[number];
    int streamed = strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true");
    const Answer *answer = &answers[strstr(body, "\"response_format\"") != NULL][streamed];
    const char *line = strstr(head, "\r\n"), *slow = strstr(head, "/paced/");
    if (streamed && slow && slow < line) {
        it->answer = answer;
        it->next = 0;
        it->due = now();
        paced++;
        go_on(number);
        return;
    }
    for (int at = 0; at < answer->count; at++)
        if (!put(number, &answer->pieces[at])) return;
}

static void hear(int number) {
    Connection *it = connections[number];
    ssize_t got = recv(number, it->buffer + it->filled, ROOM - 1 - it->filled, 0);
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN) drop(number);
        return;
    }
    it->filled += got;
    it->buffer[it->filled] = 0;
    char *end = strstr(it->buffer, "\r\n\r\n");
    if (!end) return;
    char *length = strcasestr(it->buffer, "\r\ncontent-length:");
    int size = length && length < end ? atoi(length + 17) : 0;
    if (it->buffer + it->filled - (end + 4) < size) return;
    it->filled = 0; /* nobody here sends the next question before the answer */
    reply(number, it->buffer, end + 4);
}

static int pause_for(void) {
    if (!paced) return -1;
    long long first = -1, at = now();
    for (int number = 0; number < CONNECTIONS; number++)
        if (connections[number] && connections[number]->answer && (first < 0 || connections[number]->due < first))
            first = connections[number]->due;
    return first <= at ? 0 : (first - at) / 1000000 + 1;
}

int main(int count, char **given) {
    if (count != 3) return fprintf(stderr, "usage: _proxy_upstream PORT FOLDER\n"), 2;
    const char *names[2][2] = {{"plain.whole", "plain.stream"}, {"shaped.whole", "shaped.stream"}};
    for (int shaped = 0; shaped < 2; shaped++)
        for (int streamed = 0; streamed < 2; streamed++)
            answers[shaped][streamed] = read_answer(given[2], names[shaped][streamed]);
    int yes = 1, door = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), watch = epoll_create1(0);
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(atoi(given[1]))};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(door, (struct sockaddr *)&place, sizeof place) || listen(door, 1024)) fail("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = door}, seen[AT_ONCE];
    epoll_ctl(watch, EPOLL_CTL_ADD, door, &event);
    for (;;) {
        int ready = epoll_wait(watch, seen, AT_ONCE, pause_for());
        for (int at = 0; at < ready; at++) {
            int number = seen[at].data.fd;
            if (number != door) {
                if (connections[number]) hear(number);
                continue;
            }
            while ((number = accept4(door, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                if (number >= CONNECTIONS) fail("too many connections");
                setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                connections[number] = calloc(1, sizeof(Connection));
                if (!connections[number]) fail("memory");
                event.data.fd = number;
                epoll_ctl(watch, EPOLL_CTL_ADD, number, &event);
            }
        }
        long long at = now();
        for (int number = 0; paced && number < CONNECTIONS; number++)
            if (connections[number] && connections[number]->answer && connections[number]->due <= at) go_on(number);
    }
}
