"""Quiet logs; tests that look at them use structlog.testing.capture_logs."""

import logging

import structlog

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
