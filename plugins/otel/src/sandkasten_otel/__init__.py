"""Spans and metrics over OTLP, with the libraries of OpenTelemetry.

`otlp_setup` decides what is sent. `piped_spans` records spans, `span_pipe` passes them on, and
`span_sender` is the child process that sends them. `otel_spans` makes them in a program that has
set a tracer provider, and `otlp_metrics` sends metrics.
"""
