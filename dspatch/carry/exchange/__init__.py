"""Patches in and out: mails, exports, anybody's diffs."""
