"""Images: names turned into root file systems, behind `ports.ImageSource`."""
