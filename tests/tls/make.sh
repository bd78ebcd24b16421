#!/bin/sh
# Makes the certificates of the tests again (OpenSSL 3): `sh tests/tls/make.sh`. They protect nothing, and are valid for
# a hundred years. `server` and `renewed` are for localhost and 127.0.0.1, `elsewhere` for another host, `client` is a
# client's; `stranger` is signed by an authority that nobody trusts.
set -e
cd "$(dirname "$0")"
new_key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
authority() {
    new_key "$1.key"
    openssl req -x509 -new -key "$1.key" -subj "/O=Anabranch tests/CN=$1" -days 36500 -out "$1.pem" \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
}
certificate() {
    new_key "$1.key"
    openssl req -new -key "$1.key" -subj "/O=Anabranch tests/CN=$1" |
        openssl x509 -req -CA "$2.pem" -CAkey "$2.key" -days 36500 -out "$1.pem" -extfile /dev/fd/3 3<<END
subjectAltName=$3
basicConstraints=critical,CA:FALSE
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
END
}
authority ca
authority other-ca
certificate server ca DNS:localhost,IP:127.0.0.1
certificate renewed ca DNS:localhost,IP:127.0.0.1
certificate elsewhere ca DNS:elsewhere.example
certificate client ca DNS:client.example
certificate stranger other-ca DNS:client.example
openssl pkcs8 -topk8 -in client.key -passout "pass:a word for the key" -out client-locked.key
openssl ec -in client.key -out client-old-form.key
rm other-ca.pem other-ca.key ca.key
