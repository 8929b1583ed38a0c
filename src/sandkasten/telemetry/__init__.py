"""Engine events made visible: behind `ports.EventSink`, nothing else knows where they go."""
