"""Telemetry: metrics, traces and logs, made from the events of the gateway.

Read in this order: exposition and metrics; tracing and otlp (traces); log_lines and log (logs).
"""
