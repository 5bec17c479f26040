"""Two ends of a connection between hosts, run under mpirun by test_hosts.py.

python transfer_program.py listen            answers every connection with the bytes it brought
python transfer_program.py send HOST BYTES   prints the seconds until the answer, or "no way"
"""

import socket
import sys
import time

PORT = 4000
TIMEOUT_SECONDS = 2.0


def listen():
    with socket.create_server(("", PORT)) as server:
        print("listening", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                count = 0
                while part := connection.recv(1 << 16):
                    count += len(part)
                connection.sendall(str(count).encode())


def send(host, count):
    try:
        connection = socket.create_connection((host, PORT), timeout=TIMEOUT_SECONDS)
    except OSError:
        print("no way")
        return
    with connection:
        connection.settimeout(None)
        start = time.monotonic()
        connection.sendall(bytes(count))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == str(count).encode()
        print(time.monotonic() - start)


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen()
    send(sys.argv[2], int(sys.argv[3]))
