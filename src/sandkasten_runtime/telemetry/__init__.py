"""Engine events as log lines, behind `ports.EventSink`."""
