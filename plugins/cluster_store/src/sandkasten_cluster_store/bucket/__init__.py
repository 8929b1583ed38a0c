"""Objects in a bucket, by the protocol of Amazon S3."""
