/* echo SOCKET: sends back each record that it gets, to one peer at a time: the
 * least that a round trip over such a socket can cost. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path)
        return 2;
    strcpy(address.sun_path, argv[1]);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0)
        return 1;
    puts("serves");
    fflush(stdout);
    int peer = accept(listener, NULL, NULL);
    char record[512];
    ssize_t n;
    while ((n = recv(peer, record, sizeof record, 0)) > 0)
        if (send(peer, record, (size_t)n, 0) != n)
            return 1;
    return 0;
}
