//! The annotations of a Secret with tokens that follow from the tokens. It must not list any
//! other key: keys live in `tapestry-api`; these are here because the rendering writes them.

/// When the first of the tokens expires.
pub const TOKEN_EXPIRES: &str = "tapestry.io/token-expires";
/// When new tokens are asked for.
pub const TOKEN_REFRESH: &str = "tapestry.io/token-refresh";
