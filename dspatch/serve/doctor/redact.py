"""Secrets in a log are never shown: tokens, keys, passwords, whatever a log has let slip."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"
_NAMES = (
    r"(?:api[-_ ]?keys?|(?:auth|access|hf|hub|hugging[-_]?face[-_]hub)[-_]?token|token"
    r"|secret(?:[-_]?(?:access[-_])?key)?|password|passwd|credentials?)"
)
_RULES = (
    # What gives itself away by its form.
    re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{6,200}"),
    re.compile(r"\b(?:sk|rk|pk)-[A-Za-z0-9_-]{8,200}"),
    re.compile(r"\b(?:gh[oprsu]_|github_pat_|glpat-|xox[abprs]-)[A-Za-z0-9_-]{6,200}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,20}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,300}(?:\.[A-Za-z0-9_-]{1,300}){0,2}"),
    # What is named: the value goes, the name stays.
    re.compile(r"(?i)(?<=authorization)(['\"]?\s{0,3}[:=]\s{0,3}(?:b(?=['\"]))?['\"]?)(?:(?:bearer|basic|token)\s{1,3})?[^\s'\",}]{1,300}"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s{1,3})[A-Za-z0-9._~+/=-]{6,300}"),
    re.compile(rf"(?i)({_NAMES}['\"]?\s{{0,3}}[:=]\s{{0,3}})\[[^\]]{{0,300}}\]?"),
    re.compile(rf"(?i)({_NAMES}['\"]?\s{{0,3}}[:=]\s{{0,3}}['\"]?)(?!None\b|True\b|False\b|\d{{1,6}}\b)[^\s'\",}}\]\[]{{3,300}}"),
    re.compile(rf"(?i)(--{_NAMES}[\s=]{{1,3}}['\"]?)[^\s'\",]{{1,300}}"),
    re.compile(r"(://)[^\s/@:]{1,100}:[^\s/@]{1,200}(?=@)"),
    re.compile(r"([?&](?:X-Amz-Signature|X-Amz-Credential|sig|Signature|key)=)[^\s&'\"]{4,300}"),
)  # fmt: skip


def redacted(text: str) -> str:
    """A text without the secrets that are known by their form or by the name before them."""
    for rule in _RULES:
        text = rule.sub(lambda found: f"{found[1] if found.re.groups else ''}{HIDDEN}", text)
    return text
