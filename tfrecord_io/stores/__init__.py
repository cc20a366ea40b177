"""Files on object stores and web servers: URLs, credentials, ranges and retries."""
