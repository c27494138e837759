"""Sends a message by e-mail: one SMTP session for each, within one deadline."""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate
from html import escape

from dataloader.app.config.smtp import SmtpServer
from dataloader.app.features.webhooks.chats import full_title, group_lines
from dataloader.app.features.webhooks.messages import Item, Message

_MAX_SUBJECT_LENGTH = 200
_PERMANENT = 500  # and above: the server will not take it later


class MailNotSent(Exception):
    """`status` is the server's code; None: there is no answer. `is_temporary`: the server may take it later."""

    def __init__(self, reason: str, status: int | None = None, *, is_temporary: bool = True) -> None:
        super().__init__(reason)
        self.status, self.is_temporary = status, is_temporary


def format_mail(message: Message, sender: str, recipients: Sequence[str], message_id: str) -> EmailMessage:
    """A mail with plain text and HTML. Mails about one thing have subjects that mail programs join."""
    mail = EmailMessage()
    mail["Subject"] = " ".join(full_title(message).split())[:_MAX_SUBJECT_LENGTH]
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Date"] = formatdate(localtime=False)
    mail["Message-ID"] = f"<{message_id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(_text(message))
    mail.add_alternative(_html(message), subtype="html")
    return mail


def _text(message: Message) -> str:
    def item_text(item: Item) -> str:
        lines = [*item.lines, *([] if item.url is None else [item.url])]
        return "\n".join([f"* {item.name}", *(f"  {line}" for line in lines)])

    lines = [full_title(message), ""]
    for group in message.groups:
        lines += [group.title] if group.title and len(message.groups) > 1 else []
        lines += [*group_lines(group, item_text), ""]
    lines += [] if message.url is None else [f"{message.url_title}: {message.url}"]
    return "\n".join(lines).rstrip() + "\n"


def _html(message: Message) -> str:
    def item_html(item: Item) -> str:
        name = escape(item.name)
        link = f'<a href="{escape(item.url)}">{name}</a>' if item.url else name
        return "<li>" + "<br>".join([f"<b>{link}</b>", *map(escape, item.lines)]) + "</li>"

    parts = [f"<h2>{escape(message.title)}</h2>", f"<p>{escape(message.origin)}</p>"]
    for group in message.groups:
        if group.title and len(message.groups) > 1:
            parts.append(f"<h3>{escape(group.title)}</h3>")
        parts.append(f"<ul>{''.join(map(item_html, group.items))}</ul>")
        parts += [f"<p>{line}</p>" for line in group_lines(group, lambda _: "") if line]
    if message.url:
        parts.append(f'<p><a href="{escape(message.url)}">{escape(message.url_title)}</a></p>')
    return f"<html><body>{''.join(parts)}</body></html>\n"


def send_mail(
    server: SmtpServer, mail: EmailMessage, *, timeout_sec: float, tls_context: Callable[[], ssl.SSLContext]
) -> str:
    """Return the server's answer. Raises MailNotSent, whose text has no password."""
    session = smtplib.SMTP(local_hostname=server.sender.rpartition("@")[2], timeout=timeout_sec)
    is_late = threading.Event()

    def stop() -> None:  # the timeout of a socket restarts with each byte
        is_late.set()
        if isinstance(channel := session.sock, socket.socket):
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_sec, stop)
    timer.daemon = True
    timer.start()
    try:
        return _converse(session, server, mail, tls_context)
    except smtplib.SMTPRecipientsRefused as error:
        address, (code, reply) = next(iter(error.recipients.items()))
        raise _refused(f"{address} is refused", code, reply) from None
    except smtplib.SMTPAuthenticationError as error:
        raise MailNotSent(f"the login is refused ({error.smtp_code})", error.smtp_code) from None
    except smtplib.SMTPResponseException as error:
        raise _refused("the server answered", error.smtp_code, error.smtp_error) from None
    except smtplib.SMTPNotSupportedError as error:
        raise MailNotSent(f"the server does not offer what DL_SMTP_URL asks for: {error}") from None
    except ssl.SSLError as error:
        raise MailNotSent(f"TLS: {error.reason or error}") from None
    except (OSError, smtplib.SMTPException) as error:
        if is_late.is_set() or isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError):
            raise MailNotSent(f"no answer within {timeout_sec:g} s") from None
        raise MailNotSent(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    finally:
        timer.cancel()
        session.close()


def _converse(
    session: smtplib.SMTP, server: SmtpServer, mail: EmailMessage, tls_context: Callable[[], ssl.SSLContext]
) -> str:
    if server.security == "tls":
        channel = socket.create_connection((server.host, server.port), session.timeout)
        session.sock = tls_context().wrap_socket(channel, server_hostname=server.host)
        _require_greeting(session)
    else:
        session._host = server.host  # type: ignore[attr-defined]  # starttls() verifies this name
        session.connect(server.host, server.port)
    if server.security == "starttls":
        session.starttls(context=tls_context())
    session.ehlo_or_helo_if_needed()
    if server.user is not None and server.password is not None:
        session.login(server.user, server.password)
    refused = session.send_message(mail)
    if refused:  # some of several recipients
        raise MailNotSent(f"{', '.join(sorted(refused))} refused; others have it", is_temporary=False)
    with suppress(smtplib.SMTPException, OSError):
        session.quit()
    return "accepted by the mail server"


def _require_greeting(session: smtplib.SMTP) -> None:
    code, reply = session.getreply()
    if code != 220:  # noqa: PLR2004 - ready
        raise smtplib.SMTPConnectError(code, reply.decode("utf-8", "replace"))


def _refused(what: str, code: int, reply: bytes | str) -> MailNotSent:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    return MailNotSent(f"{what}: {code} {text}", code, is_temporary=not code >= _PERMANENT)
