"""Traces of messages: contexts, what a span is made of, which messages get them. Pure; exporting is
`tandemmq.service`'s."""
