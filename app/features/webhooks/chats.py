"""Writes a message as the bodies that Slack, Microsoft Teams and Google Chat take."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from dataloader.app.features.webhooks.messages import Group, Item, Message, Tone
from dataloader.app.features.webhooks.receivers import Format
from dataloader.app.wording import format_count

_COLORS = {Tone.BAD: "#c62828", Tone.GOOD: "#2e7d32", Tone.NEUTRAL: "#546e7a"}
_CARD_COLORS = {Tone.BAD: "Attention", Tone.GOOD: "Good", Tone.NEUTRAL: "Default"}
_MAX_HEADER_LENGTH = 150  # of a header block of Slack
_MAX_SECTION_LENGTH = 3_000  # of a text of a section of Slack
_MAX_CHAT_LENGTH = 4_000  # of a text message of Google Chat
_MARKDOWN = re.compile(r"([\\*_\[\]()#`~])")
_CHAT_MARKS = str.maketrans({"*": "∗", "_": "\u02cd", "~": "∼", "`": "ˋ"})


def format_body(message: Message, format: Format) -> str:
    writers: dict[Format, Callable[[Message], dict[str, Any]]] = {
        Format.SLACK: _slack,
        Format.TEAMS: _teams,
        Format.GOOGLE_CHAT: _google_chat,
    }
    return json.dumps(writers[format](message), ensure_ascii=False)


def full_title(message: Message) -> str:
    return f"{message.title} · {message.origin}"


def group_lines(group: Group, format_item: Callable[[Item], str]) -> Iterator[str]:
    yield from map(format_item, group.items)
    if group.more:
        yield f"and {group.more:,} more" if group.items else format_count(group.more, "alert")


# ── Slack ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _escape(text: str) -> str:
    """Slack's and Google Chat's texts take these three as marks of links and mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _link(text: str, url: str | None) -> str:
    return _escape(text) if url is None else f"<{_escape(url)}|{_escape(text).replace('|', '/')}>"


def _slack(message: Message) -> dict[str, Any]:
    def section(text: str) -> dict[str, Any]:
        return {"type": "section", "text": {"type": "mrkdwn", "text": text[:_MAX_SECTION_LENGTH]}}

    def item_text(item: Item) -> str:
        return "\n".join([f"• {_link(item.name, item.url)}", *(f"   {_escape(line)}" for line in item.lines)])

    title = full_title(message)[:_MAX_HEADER_LENGTH]
    blocks: list[dict[str, Any]] = [{"type": "header", "text": {"type": "plain_text", "text": title}}]
    for group in message.groups:
        if group.title and len(message.groups) > 1:
            blocks.append(section(f"*{_escape(group.title)}*"))
        blocks += [section(text) for text in group_lines(group, item_text)]
    if message.url is not None:
        blocks.append(
            {
                "type": "actions",
                "elements": [
                    {
                        "type": "button",
                        "text": {"type": "plain_text", "text": message.url_title},
                        "url": message.url,
                    }
                ],
            }
        )
    return {"text": _escape(title), "attachments": [{"color": _COLORS[message.tone], "blocks": blocks}]}


# ── Teams ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _teams(message: Message) -> dict[str, Any]:
    def text_block(text: str, **more: Any) -> dict[str, Any]:
        return {"type": "TextBlock", "text": text, "wrap": True, **more}

    def item_text(item: Item) -> str:
        name = _plain(item.name) if item.url is None else f"[{_plain(item.name)}]({item.url})"
        return "\n\n".join([name, *map(_plain, item.lines)])

    parts = [
        text_block(_plain(message.title), weight="Bolder", size="Medium", color=_CARD_COLORS[message.tone]),
        text_block(_plain(message.origin), isSubtle=True, spacing="None"),
    ]
    for group in message.groups:
        if group.title and len(message.groups) > 1:
            parts.append(text_block(_plain(group.title), weight="Bolder"))
        parts += [text_block(text, separator=True) for text in group_lines(group, item_text)]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": parts,
        "msteams": {"width": "Full"},
    }
    if message.url is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": message.url_title, "url": message.url}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _plain(text: str) -> str:
    """Without the effect of Markdown, which a text block of a card has."""
    return _MARKDOWN.sub(r"\\\1", text)


# ── Google Chat ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _google_chat(message: Message) -> dict[str, Any]:
    def item_text(item: Item) -> str:
        return "\n".join([f"• {_link(item.name, item.url)}", *(f"   {_without_marks(line)}" for line in item.lines)])

    lines = [f"*{_without_marks(full_title(message))}*"]
    for group in message.groups:
        if group.title and len(message.groups) > 1:
            lines.append(f"*{_without_marks(group.title)}*")
        lines += group_lines(group, item_text)
    last = [] if message.url is None else [_link(message.url_title, message.url)]
    text = ""
    for line in lines:  # whole lines: a link that is cut is no link
        if len(text) + len(line) + sum(map(len, last)) > _MAX_CHAT_LENGTH:
            break
        text += f"{line}\n"
    return {"text": "\n".join([text.rstrip(), *last])}


def _without_marks(text: str) -> str:
    """Google Chat has no way to escape the marks of bold, italic, struck and code."""
    return _escape(text).translate(_CHAT_MARKS)
