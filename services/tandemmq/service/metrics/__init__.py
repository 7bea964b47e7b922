"""Metrics on their way out of a process: to Prometheus, which asks, and by OTLP.

Light to import: the OpenTelemetry SDK is loaded in processes that send.
"""
