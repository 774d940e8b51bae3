use super::*;

#[test]
fn urls_that_cannot_be_called_are_refused_without_repeating_them() {
    for url in
        ["", "orders", "/orders", "ftp://a", "https://", "http://ada:s3cret@a/", "http://a b"]
    {
        let error = HttpHandler::new(options(url)).err().unwrap_or_else(|| panic!("{url}"));
        assert!(matches!(error, HttpError::Url { .. }), "{url}: {error}");
        assert!(!error.to_string().contains("s3cret"));
    }
}
