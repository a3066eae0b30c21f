"""The metadata service: which key lies in which page of which rank's file, for every process that uses those files."""
