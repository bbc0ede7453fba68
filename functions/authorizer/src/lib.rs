//! authorizer.
