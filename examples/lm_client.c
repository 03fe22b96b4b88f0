/* Puts a value into `hexkv serve` and gets it back, over LMCache's lm:// wire.
 *
 *   cc -o lm_client lm_client.c && ./lm_client 7070
 *
 * Exit code 0 if the value that came back is the one that was put.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PUT = 1, GET = 2, SUCCESS = 200, KEY = 150, WORDS = 9 };

/* command, length, format, dtype, location, shape (4); then the key, padded with blanks. */
static int ask(int to, int32_t command, const char *key, int32_t length) {
    char message[WORDS * 4 + KEY];
    int32_t words[WORDS] = {command, length, 1, 2, 0, length, 0, 0, 0};
    memcpy(message, words, sizeof words);
    memset(message + sizeof words, ' ', KEY);
    memcpy(message + sizeof words, key, strlen(key));
    return send(to, message, sizeof message, 0) == (ssize_t)sizeof message ? 0 : -1;
}

int main(int count, char **arguments) {
    char value[] = "the KV of one chunk", back[sizeof value];
    int32_t answer[WORDS]; /* code, length, format, dtype, shape (4), location */
    struct sockaddr_in there = {.sin_family = AF_INET,
                                .sin_port = htons(count > 1 ? atoi(arguments[1]) : 7070),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int to = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(to, (struct sockaddr *)&there, sizeof there)) return perror("connect"), 1;
    if (ask(to, PUT, "model@chunk-1", sizeof value)) return perror("send"), 1;
    if (send(to, value, sizeof value, 0) != sizeof value) return perror("send"), 1;
    /* PUT has no answer; the next request of the connection comes after it. */
    if (ask(to, GET, "model@chunk-1", 0)) return perror("send"), 1;
    if (recv(to, answer, sizeof answer, MSG_WAITALL) != sizeof answer) return perror("recv"), 1;
    if (answer[0] != SUCCESS || answer[1] != sizeof value) return puts("a miss"), 1;
    if (recv(to, back, sizeof back, MSG_WAITALL) != sizeof back) return perror("recv"), 1;
    close(to);
    puts(memcmp(back, value, sizeof value) ? "another value" : "the value came back");
    return memcmp(back, value, sizeof value) != 0;
}
