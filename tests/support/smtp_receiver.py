"""A mail server on the loopback: takes mails, with TLS, STARTTLS and a login if wanted, and may refuse or hang."""

from __future__ import annotations

import base64
import contextlib
import email
import email.policy
import socketserver
import ssl
import threading
from collections.abc import Mapping
from email.message import EmailMessage
from types import TracebackType

from tests.support.waiting import eventually


class SmtpReceiver:
    """Notes what it is sent. `replies` replaces the answer to a command, such as `{"RCPT": "550 no such user"}`."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        starttls: ssl.SSLContext | None = None,
        login: tuple[str, str] | None = None,
        replies: Mapping[str, str] | None = None,
        is_hanging: bool = False,
    ) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.was_encrypted: list[bool] = []
        self.is_closed = threading.Event()
        self.starttls, self.login, self.replies, self.is_hanging = starttls, login, dict(replies or {}), is_hanging
        self.tls = tls
        receiver = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the sender did not wait, or refused the certificate
                    _Session(receiver, self).run()

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """The sender sees the fault."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def wait_for(self, count: int) -> list[EmailMessage]:
        eventually(lambda: len(self.mails) >= count, 30, lambda: f"{count} mails: {self.mails}")
        return list(self.mails)

    def __enter__(self) -> SmtpReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_closed.set()
        self._server.shutdown()
        self._server.server_close()


class _Session:
    def __init__(self, receiver: SmtpReceiver, handler: socketserver.StreamRequestHandler) -> None:
        self._receiver, self._channel = receiver, handler.request
        if receiver.tls is not None:
            self._channel = receiver.tls.wrap_socket(self._channel, server_side=True)
        self._reader = self._channel.makefile("rb")
        self._is_encrypted = receiver.tls is not None
        self._is_known = receiver.login is None
        self._recipients: list[str] = []

    def _reply(self, *lines: str) -> None:
        codes = [f"{line[:3]}{'-' if n < len(lines) - 1 else ' '}{line[4:]}" for n, line in enumerate(lines)]
        self._channel.sendall("".join(f"{line}\r\n" for line in codes).encode())

    def run(self) -> None:
        try:
            self._converse()
        finally:
            self._reader.close()
            self._channel.close()

    def _converse(self) -> None:
        if self._receiver.is_hanging:
            self._receiver.is_closed.wait(30)
            return
        self._reply("220 mail.test ready")
        while line := self._reader.readline():
            words = line.decode().strip().split(" ")
            command = words[0].upper()
            if command == "QUIT":
                self._reply("221 bye")
                return
            if command in self._receiver.replies:
                self._reply(self._receiver.replies[command])
            else:
                self._answer(command, words)

    def _answer(self, command: str, words: list[str]) -> None:
        if command == "EHLO":
            offers = ["250 STARTTLS"] if self._receiver.starttls is not None and not self._is_encrypted else []
            self._reply("250 mail.test", *offers, *(["250 AUTH PLAIN"] if self._receiver.login else []))
        elif command == "STARTTLS" and self._receiver.starttls is not None:
            self._reply("220 go ahead")
            self._reader.close()
            self._channel = self._receiver.starttls.wrap_socket(self._channel, server_side=True)
            self._reader, self._is_encrypted = self._channel.makefile("rb"), True
        elif command == "AUTH":
            _, user, password = base64.b64decode(words[2]).decode().split("\0")
            self._is_known = (user, password) == self._receiver.login
            self._reply("235 welcome" if self._is_known else "535 wrong name or password")
        elif command in ("MAIL", "RCPT"):
            if command == "RCPT":
                self._recipients.append(words[1].partition("<")[2].rstrip(">"))
            self._reply("250 ok" if self._is_known else "530 log in first")
        elif command == "DATA":
            self._reply("354 send it")
            self._take_mail()
        elif command in ("RSET", "NOOP"):
            self._reply("250 ok")
        else:
            self._reply("502 not known")

    def _take_mail(self) -> None:
        lines = []
        while (line := self._reader.readline()) not in (b".\r\n", b""):
            lines.append(line[1:] if line.startswith(b".") else line)
        mail = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        self._receiver.was_encrypted.append(self._is_encrypted)
        self._receiver.recipients.append(self._recipients)
        self._receiver.mails.append(mail)
        self._recipients = []
        self._reply("250 queued")
