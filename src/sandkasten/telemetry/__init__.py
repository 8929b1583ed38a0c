"""Engine events as logs and metrics, behind `ports.EventSink`."""
