"""Observe: metrics, traces and logs, made of what the gateway tells.

Read them in this order: exposition, call_metrics, loop_lag, process and monitor (metrics);
trace_context, tracing, otlp and exporter (traces); log_lines, log and pen (logs).
"""
