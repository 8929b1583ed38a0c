"""Images: turn names into root file systems, behind `ports.ImageSource`."""
