//! Who may write what, as an ordinary user.

use super::{as_user, Place};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_file_that_the_user_may_not_write_is_not_replaced() {
    as_user(Place::new(), |place| {
        place.write("a", b"old");
        fs::set_permissions(place.path("a"), fs::Permissions::from_mode(0o444)).unwrap();
        assert_eq!(
            place.write_code(json!({ "path": "a" }), b"new"),
            "permission"
        );
        assert_eq!(place.names(""), ["a"]);
        assert_eq!(fs::read(place.path("a")).unwrap(), b"old");
        // Its directory decides about the name, as with `mv` and `rm`.
        place.write("b", b"new");
        place.ok(
            "fs.move",
            json!({ "source": "b", "destination": "a", "overwrite": true }),
        );
        assert_eq!(fs::read(place.path("a")).unwrap(), b"new");
    });
}
