module github.com/vito/tuist/teav1

go 1.25

require github.com/vito/tuist v0.0.6
